#include "floe/models/unwrapped_source.h"

#include <algorithm>

#include "floe/core/error.h"
#include "floe/io/json_text.h"
#include "floe/io/renamed_source.h"
#include "floe/models/part_names.h"

namespace floe::models {
namespace {

// The part of a checkpoint that holds the weights; empty when it is nothing but weights.
std::string state_dict_prefix(const std::vector<std::string>& names) {
  for (const char* prefix : {"model_state_dict.", "state_dict."})
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return name.starts_with(prefix); }))
      return prefix;
  return "";
}

}  // namespace

std::shared_ptr<const TensorSource> unwrapped(std::shared_ptr<const TensorSource> source,
                                              const std::string& path) {
  const std::vector<std::string> names = source->names();
  const std::string prefix = state_dict_prefix(names);
  Renames renames;
  bool same = true;
  for (const std::string& original : names) {
    if (!original.starts_with(prefix)) continue;
    std::string name = original.substr(prefix.size());
    for (const char* mark : {"_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."})
      erase_all(name, mark);
    constexpr std::string_view kModule = "module.";
    if (name.starts_with(kModule)) name.erase(0, kModule.size());
    same = same && name == original;
    const auto [known, is_new] = renames.emplace(name, original);
    require<DataError>(is_new, "'", path, "': ", quoted(known->second), " and ", quoted(original),
                       " are both the weights of ", quoted(name));
  }
  if (same) return source;
  return std::make_shared<RenamedSource>(std::move(source), renames);
}

}  // namespace floe::models
