#include "floe/train/setup/resume.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/core/log.h"
#include "floe/core/names.h"
#include "floe/core/str.h"
#include "floe/data/sources/source.h"

namespace floe::train {

// ---- where the data goes on ----

namespace {

// Whether the checkpoint was saved by a run that had begun its data anew.
bool was_restarted(const nlohmann::json& shared) {
  const auto said = [](const nlohmann::json& block, const char* key) {
    return block.is_object() ? block.value(key, nlohmann::json()) : nlohmann::json();
  };
  return said(said(said(shared, "config"), "run"), "resume_data") == "restart";
}

// The newest checkpoint of the run, after at most so many attempts at a step, that has the position
// of every rank. A damaged one holds nobody up: an older one, or the beginning, leads to the same
// place over more batches.
std::optional<checkpoint::Manifest> older_position(const std::string& folder,
                                                   std::int64_t attempts) {
  std::vector<std::string> names{checkpoint::kLast};
  for (const checkpoint::Listed& listed : checkpoint::list_checkpoints(folder))
    names.push_back(listed.name);
  for (const std::string& name : names) {
    const std::string file = checkpoint::manifest_path(folder + "/" + name);
    std::error_code ignored;
    if (!std::filesystem::exists(file, ignored)) continue;
    try {
      checkpoint::Manifest manifest = checkpoint::read_manifest(file);
      if (manifest.ranks.is_whole() && manifest.shared.value("attempts", manifest.step) <= attempts)
        return manifest;
    } catch (const Error& error) {
      log::warn("data: no position is taken from '", folder, "/", name, "': ", error.what());
    }
  }
  return std::nullopt;
}

DataPosition where_saved(const checkpoint::Restored& restored, const RunConfig& config) {
  const std::int64_t batches_per_step = config.train.gradient_accumulation;
  const std::string run_folder = config.run.folder();
  if (restored.ranks.is_whole()) return {restored.ranks, 0, false};
  const std::int64_t attempts = restored.shared.value("attempts", restored.step);
  DataPosition position{{}, attempts * batches_per_step, false};
  std::string from = "the beginning";
  if (const auto older = older_position(checkpoint::checkpoints_folder(run_folder), attempts)) {
    const std::int64_t before = older->shared.value("attempts", older->step);
    position = {older->ranks, (attempts - before) * batches_per_step, false};
    from = str("step ", older->step);
  }
  log::info("data: a rank that died left no position; reading on from ", from, " over ",
            counted(position.batches_behind, "batch"));
  return position;
}

}  // namespace

DataPosition data_position(const checkpoint::Restored& restored, const RunConfig& config) {
  const bool restarts = config.run.resume_data == RunSection::ResumeData::restart;
  if (restarts && !was_restarted(restored.shared)) {
    log::info("data: begins anew (run.resume_data is restart)");
    return {};
  }
  DataPosition position = where_saved(restored, config);
  position.restarts_if_other = restarts;
  return position;
}

std::unique_ptr<data::Loader> open_loader(const DataPosition& position, const DataConfig& config,
                                          const data::LoaderContext& context,
                                          shard::Engine& engine) {
  if (position.ranks.empty()) return std::make_unique<data::Loader>(config, context);
  const data::SavedRanks saved{
      position.ranks.size(),
      [&](std::int64_t rank) { return position.ranks.of(static_cast<int>(rank)); },
      [&] { return position.ranks.all(); }};
  if (!position.restarts_if_other) return std::make_unique<data::Loader>(config, context, saved);
  std::unique_ptr<data::Loader> loader;
  std::string other;
  try {
    loader = std::make_unique<data::Loader>(config, context, saved);
  } catch (const data::OtherData& error) {
    other = error.what();
  }
  // A rank may have a file of its own, but all begin anew or none.
  if (!engine.any_rank_has(!loader)) return loader;
  log::info("data: begins anew (run.resume_data is restart)", other.empty() ? "" : ": ", other);
  return std::make_unique<data::Loader>(config, context);
}

// ---- what the run does differently ----

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
    {"model.lora.rslora", "takes effect"},
    {"model.only_attend_immediate_media", "takes effect"},
    {"model.vision_tokens_after_ln_post", "takes effect"},
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

// Blocks whose keys are the user's own words: as a whole, since each side has other ones.
bool is_by_name(const std::string& key) {
  return key == "train.optimizer.lr_patterns" || key == "train.validation.shards";
}

// Keys of the schema are looked up on both sides: what only one of them knows is left out.
void compare(const json& before, const json& now, const std::string& key,
             RunSection::ResumeData data, std::vector<Change>& changes) {
  if (before == now) return;
  if (!before.is_object() || !now.is_object() || is_by_name(key)) {
    changes.push_back(shown(key, before, now, effect_of(key, data)));
    return;
  }
  for (const auto& [name, value] : now.items())
    if (const auto old = before.find(name); old != before.end())
      compare(*old, value, key.empty() ? name : str(key, ".", name), data, changes);
}

// The table as lines; none when nothing differs.
std::vector<std::string> change_lines(const json& before, const json& now, int world_before,
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

}  // namespace

nlohmann::json newest_state(const RunSection& run) {
  std::vector<std::string> passed_over;
  const std::string folder = checkpoint::checkpoints_folder(run.folder());
  const std::vector<std::string> paths =
      run.resume == "auto" ? checkpoint::candidates(folder, passed_over)
                           : checkpoint::candidates_from(run.resume, folder, passed_over);
  try {
    if (!paths.empty())
      return checkpoint::read_manifest(checkpoint::manifest_path(paths.front())).shared;
  } catch (const Error&) {
    // Then there is nothing to compare with.
  }
  return nullptr;
}

void log_resume_changes(const json& saved, const json& now, const RunConfig& config,
                        int world_size) {
  if (!saved.is_object()) return;
  const int before = saved.value("world_size", world_size);
  const std::vector<std::string> lines =
      change_lines(saved.value("config", json()), now, before, world_size, config.run.resume_data);
  if (config.data.batches && before != world_size)
    log::warn("data.batches has a file per rank, and the checkpoint is of ",
              counted(before, "rank"), ": ",
              before > world_size
                  ? "what the files of the ranks that are gone still held is not read"
                  : "the files of new ranks are read on from where those of the others stand");
  if (!lines.empty()) log::info("this run differs from the one that saved the checkpoint:");
  for (const std::string& line : lines) log::info("  ", line);
}

}  // namespace floe::train
