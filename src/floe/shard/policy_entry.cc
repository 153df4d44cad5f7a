#include "floe/shard/policy_entry.h"

#include "floe/core/names.h"
#include "floe/nn/module.h"

namespace floe::shard {

bool is_pattern(const std::string& entry) {
  return entry.find_first_of(".*?[") != std::string::npos;
}

bool names_module(const std::string& entry, const std::string& name,
                  const torch::nn::Module& module) {
  if (is_pattern(entry)) return glob_match(entry, name);
  return nn::class_name(module) == entry || name == entry;
}

}  // namespace floe::shard
