#include "floe/train/setup/resume_changes.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "floe/core/names.h"
#include "floe/core/str.h"
#include "floe/data/sources/source.h"

namespace floe::train {
namespace {

using nlohmann::json;

constexpr const char* kData =
    "refused if it is other data; run.resume_data=restart begins the data anew";
constexpr const char* kBegunAnew = "takes effect: the data begins anew";

struct Effect {
  const char* pattern;
  const char* words;
};
// The first pattern that matches a key says what a change of it means.
constexpr std::array kEffects = std::to_array<Effect>({
    {"run.seed",
     "takes effect; refused where the order of the data hangs on it, unless "
     "run.resume_data=restart begins it anew"},
    {"run.*", "harmless"},
    {"log*", "harmless"},
    {"dist*", "harmless"},
    {"checkpoint*", "takes effect from the next save on"},
    {"data.threads", "harmless"},
    {"data.max_bad_fraction", "harmless"},
    {"data.*.shards", kData},
    {"data.*.files", kData},
    {"data.batches", kData},
    {"data.rules", kData},
    {"data.resampled", kData},
    {"data*", "takes effect on the data from here on"},
    {"train.validation*", "takes effect on validation alone"},
    {"train.max_skipped", "harmless"},
    {"train.optimizer.type", "refused where the other type keeps another state"},
    {"train.trainable", "takes effect; what was trained before stays in the checkpoints"},
    {"phases*", "takes effect; what was trained before stays in the checkpoints"},
    {"train*", "takes effect"},
    {"precision*", "takes effect: other rounding"},
    {"strategy.mixed_precision*", "takes effect: other rounding"},
    {"strategy.frozen.dtype", "takes effect: other rounding"},
    {"strategy.frozen.compute", "takes effect: other rounding"},
    {"strategy*", "harmless: the same numbers up to the order of sums"},
    {"model.lm", "harmless if the files are the same, else refused"},
    {"model.vision", "harmless if the files are the same, else refused"},
    {"model.tokenizer", "takes effect"},
    {"model.weights", "no effect: the checkpoint has the weights"},
    {"model.lora.weights", "no effect: the checkpoint has the weights"},
    {"model.skip_init", "no effect: the checkpoint has the weights"},
    {"model.random_init", "no effect: the checkpoint has the weights"},
    {"model.*dropout", "takes effect"},
    {"model.lora.alpha", "takes effect"},
    {"model*", "refused where it changes names or shapes of parameters"},
});

// "data.laion": a source that one of the two runs does not have.
bool is_source(const std::string& key) {
  return key.starts_with("data.") && data::find_source(std::string_view(key).substr(5));
}

std::string effect_of(const std::string& key, RunSection::ResumeData data) {
  const auto found = std::find_if(kEffects.begin(), kEffects.end(), [&](const Effect& effect) {
    return glob_match(effect.pattern, key);
  });
  if (found == kEffects.end()) return "takes effect";
  if (data == RunSection::ResumeData::restart && key.starts_with("data.")) return kBegunAnew;
  if (is_source(key)) return kData;
  return found->words;
}

struct Change {
  std::string key, before, now, effect;
};

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Of long values the part from a little before the first difference on.
Change shown(const std::string& key, const json& before, const json& now, std::string effect) {
  constexpr std::ptrdiff_t kMost = 40, kBefore = 12;
  const std::string old = text_of(before), fresh = text_of(now);
  const auto differs = std::mismatch(old.begin(), old.end(), fresh.begin(), fresh.end()).first;
  const std::ptrdiff_t begin = std::max<std::ptrdiff_t>(0, differs - old.begin() - kBefore);
  const auto cut = [&](const std::string& text) {
    const auto size = static_cast<std::ptrdiff_t>(text.size());
    if (size <= kMost) return text;
    const std::ptrdiff_t from = std::min(begin, size - kMost);
    return str(from > 0 ? "…" : "", text.substr(static_cast<std::size_t>(from), kMost),
               from + kMost < size ? "…" : "");
  };
  return {key, cut(old), cut(fresh), std::move(effect)};
}

bool has_prepared(const json& config) {
  const auto data = config.find("data");
  return data != config.end() && data->is_object() && data->contains("batches") &&
         !data->at("batches").is_null();
}

// Keys of the root are looked up on both sides: what only one of them knows is left out.
void compare(const json& before, const json& now, const std::string& key,
             RunSection::ResumeData data, std::vector<Change>& changes) {
  if (before == now) return;
  if (!before.is_object() || !now.is_object()) {
    changes.push_back(shown(key, before, now, effect_of(key, data)));
    return;
  }
  for (const auto& [name, value] : now.items())
    if (const auto old = before.find(name); old != before.end())
      compare(*old, value, key.empty() ? name : str(key, ".", name), data, changes);
}

}  // namespace

std::vector<std::string> resume_changes(const json& before, const json& now, int world_before,
                                        int world_now, RunSection::ResumeData data) {
  std::vector<Change> changes;
  if (world_before != world_now)
    changes.push_back({"ranks", str(world_before), str(world_now),
                       has_prepared(now)
                           ? "takes effect: every rank goes on in its own file"
                           : "takes effect: what is left of the epoch is dealt to them"});
  if (before.is_object()) compare(before, now, "", data, changes);
  if (changes.empty()) return {};
  Change head{"key", "checkpoint", "now", "what that means"};
  std::size_t key = 0, old = 0, fresh = 0;
  changes.insert(changes.begin(), head);
  for (const Change& change : changes) {
    key = std::max(key, change.key.size());
    old = std::max(old, change.before.size());
    fresh = std::max(fresh, change.now.size());
  }
  const auto padded = [](std::string text, std::size_t width) {
    text.resize(std::max(width, text.size()), ' ');
    return text + "  ";
  };
  std::vector<std::string> lines;
  for (const Change& change : changes)
    lines.push_back(str(padded(change.key, key), padded(change.before, old),
                        padded(change.now, fresh), change.effect));
  return lines;
}

}  // namespace floe::train
