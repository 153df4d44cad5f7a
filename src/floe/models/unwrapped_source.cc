#include "floe/models/unwrapped_source.h"

#include <algorithm>
#include <map>

#include "floe/core/error.h"
#include "floe/io/json_text.h"
#include "floe/io/renamed_source.h"
#include "floe/io/training_state.h"
#include "floe/models/part_names.h"

namespace floe::models {
namespace {

// Without what data parallelism, FSDP, activation checkpointing and compilation put into names.
std::string unmarked(std::string name) {
  for (const char* mark : {"_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."})
    erase_all(name, mark);
  constexpr std::string_view kModule = "module.";
  if (name.starts_with(kModule)) name.erase(0, kModule.size());
  return name;
}

// A LightningModule keeps its network in an attribute, usually `model`.
constexpr std::string_view kLightningPart = "state_dict.", kNetwork = "model.";

bool all_start_with(const std::map<std::string, std::string>& names, std::string_view prefix) {
  return std::all_of(names.begin(), names.end(),
                     [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

}  // namespace

std::shared_ptr<const TensorSource> unwrapped(std::shared_ptr<const TensorSource> source,
                                              const std::string& path) {
  const std::string prefix = weights_prefix(*source);
  Renames renames;
  bool same = true;
  for (const std::string& original : source->names()) {
    if (!original.starts_with(prefix)) continue;
    const std::string name = unmarked(original.substr(prefix.size()));
    same = same && name == original;
    const auto [known, is_new] = renames.emplace(name, original);
    require<DataError>(is_new, "'", path, "': ", quoted(known->second), " and ", quoted(original),
                       " are both the weights of ", quoted(name));
  }
  if (same) return source;
  if (prefix == kLightningPart && all_start_with(renames, kNetwork) && is_of_lightning(*source)) {
    Renames inner;
    for (const auto& [name, original] : renames) inner[name.substr(kNetwork.size())] = original;
    renames = std::move(inner);
  }
  return std::make_shared<RenamedSource>(std::move(source), renames);
}

}  // namespace floe::models
