#include "floe/cli/loaded_model.h"

#include <ATen/Context.h>

#include <map>

#include "floe/core/log.h"
#include "floe/models/weight_defects.h"
#include "floe/nn/load.h"

namespace floe::cli {
namespace {

template <class T>
T choose(const Options& options, const std::string& name, const std::map<std::string, T>& choices,
         const std::string& otherwise) {
  const std::string given = options.value(name).value_or(otherwise);
  const auto found = choices.find(given);
  if (found == choices.end()) {
    std::vector<std::string> names;
    for (const auto& [key, value] : choices) names.push_back(key);
    throw ConfigError(str(name, " is '", given, "', but must be one of ", join(names, ", ")));
  }
  return found->second;
}

// Nothing is used in silence that was never trained.
void tell_new_parameters(const models::BuiltModel& built, const std::string& path) {
  std::vector<std::string> names;
  for (const nn::NamedParameter& parameter : nn::named_parameters(*built.module))
    if (!built.source->find(parameter.name)) names.push_back(parameter.name);
  if (names.empty()) return;
  std::vector<std::string> parts;
  for (const auto& [pattern, count] : models::name_patterns(names))
    parts.push_back(str(pattern, " (", count, ")"));
  log::warn("'", path, "' names no trained weights for ", names.size(),
            names.size() == 1 ? " parameter, which is" : " parameters, which are",
            " random: ", join(parts, ", "), "; name them with model.weights");
}

}  // namespace

LoadedModel load_model(const std::string& command, const std::string& path, const Args& changes,
                       const Options& options) {
  LoadedModel loaded;
  loaded.dtype = choose<at::ScalarType>(
      options, "--dtype", {{"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}},
      "fp32");
  loaded.device = choose<at::Device>(
      options, "--device", {{"cpu", at::Device(at::kCPU)}, {"cuda", at::Device(at::kCUDA, 0)}},
      "cpu");
  require<ConfigError>(
      !loaded.device.is_cuda() || at::hasCUDA(), command,
      ": --device is cuda, but there is no GPU that this program can use; leave it "
      "out to compute on the CPU");
  const Located located = locate(command, path, Wanted::weights);
  const UsedModel used = require_model(command, located, changes);
  loaded.config = used.config;
  loaded.built = build(used);
  tell_choice(located);
  tell_new_parameters(loaded.built, path);
  nn::materialize(*loaded.built.module, loaded.built.source.get(), used.seed, loaded.device,
                  loaded.dtype);
  loaded.built.module->eval();
  return loaded;
}

}  // namespace floe::cli
