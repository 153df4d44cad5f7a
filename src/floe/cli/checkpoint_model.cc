#include "floe/cli/checkpoint_model.h"

#include <algorithm>
#include <filesystem>

#include "floe/checkpoint/manifest.h"
#include "floe/cli/find_checkpoint.h"
#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/io/open_tensors.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

void add_patterns(const config::Value* list, std::vector<std::string>& patterns) {
  if (!list || !list->as<config::List>()) return;
  for (const config::Value& pattern : *list->as<config::List>())
    patterns.push_back(pattern.scalar_text());
}

// A whole configuration of a run, or its block `model:` alone.
CheckpointModel from_tree(const config::Value& tree, const std::string& origin) {
  CheckpointModel model{.origin = origin};
  require<ConfigError>(tree.as<config::Map>() != nullptr, origin,
                       ": is no model; expected keys such as type, lm and vision");
  const config::Value* block = tree.at("model");
  model.config =
      config::load<models::ModelConfig>(block && block->as<config::Map>() ? *block : tree).config;
  if (const config::Value* seed = tree.at("run.seed"); seed && seed->as<std::int64_t>())
    model.seed = static_cast<std::uint64_t>(*seed->as<std::int64_t>());
  add_patterns(tree.at("train.trainable"), model.trained);
  if (const config::Value* phases = tree.at("phases"); phases && phases->as<config::List>())
    for (const config::Value& phase : *phases->as<config::List>())
      add_patterns(phase.at("train"), model.trained);
  return model;
}

}  // namespace

std::optional<CheckpointModel> find_checkpoint_model(const std::string& checkpoint,
                                                     const std::string& model_yaml) {
  if (!model_yaml.empty()) {
    CheckpointModel model = from_tree(config::read_yaml(model_yaml), model_yaml);
    models::resolve_paths(model.config, fs::path(model_yaml).parent_path().string());
    return model;
  }
  const std::string manifest = checkpoint::manifest_path(checkpoint);
  std::error_code ignored;
  if (fs::exists(manifest, ignored)) {
    const nlohmann::json shared = checkpoint::read_manifest(manifest).shared;
    if (shared.is_object() && shared.contains("config"))
      return from_tree(config::parse_yaml(shared.at("config").dump(), manifest), manifest);
  }
  const std::string run = run_of_checkpoint(checkpoint);
  if (run.empty() || !fs::exists(run + "/config.yaml", ignored)) return std::nullopt;
  return from_tree(config::read_yaml(run + "/config.yaml"), run + "/config.yaml");
}

void check_frozen_base(const std::string& checkpoint, const models::ModelConfig& config) {
  const std::string file = checkpoint::manifest_path(checkpoint);
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return;
  std::vector<std::string> paths;  // in the order in which a run names them
  for (const std::string& path : {config.lm, config.vision})
    if (!path.empty()) paths.push_back(path);
  const auto bases = checkpoint::read_manifest(file).bases;
  for (std::size_t i = 0; i < std::min(bases.size(), paths.size()); ++i)
    require<CheckpointError>(checkpoint::weights_digest(*open_tensors(paths[i])) == bases[i].digest,
                             "'", checkpoint, "' was trained on the frozen weights of '",
                             bases[i].path, "', but '", paths[i],
                             "' holds others now; name the right ones with --model FILE.yaml");
}

}  // namespace floe::cli
