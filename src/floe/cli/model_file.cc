#include "floe/cli/model_file.h"

#include <filesystem>
#include <map>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
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

}  // namespace

LoadedModel load_model_file(const std::string& path, const Options& options) {
  LoadedModel loaded;
  loaded.dtype = choose<at::ScalarType>(
      options, "--dtype", {{"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}},
      "fp32");
  loaded.device = choose<at::Device>(
      options, "--device", {{"cpu", at::Device(at::kCPU)}, {"cuda", at::Device(at::kCUDA, 0)}},
      "cpu");
  config::Value tree = config::read_yaml(path);
  require<ConfigError>(tree.as<config::Map>() != nullptr, path,
                       ": is no model; expected keys such as type, lm and vision");
  if (const config::Value* block = tree.at("model"); block && block->as<config::Map>()) {
    config::Value inner = *block;
    tree = inner;
  }
  loaded.config = config::load<models::ModelConfig>(tree).config;
  models::resolve_paths(loaded.config, std::filesystem::path(path).parent_path().string());
  loaded.built = models::build_model(loaded.config, /*seed=*/0);
  nn::materialize(*loaded.built.module, loaded.built.source.get(), /*seed=*/0, loaded.device,
                  loaded.dtype);
  loaded.built.module->eval();
  return loaded;
}

}  // namespace floe::cli
