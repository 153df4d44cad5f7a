#include "floe/config/layers.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "floe/config/merge.h"
#include "floe/config/overrides.h"
#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/core/names.h"

namespace floe::config {
namespace {

namespace fs = std::filesystem;

// A layer must be a block of keys; an empty file is an empty one.
Value read_layer(const std::string& path) {
  Value value = read_yaml(path);
  if (value.is_null()) value.data = Map();
  require<ConfigError>(value.as<Map>(), value.origin.text(),
                       ": a configuration is a block of 'key: value' lines, not ", value.shown());
  return value;
}

std::vector<fs::path> search_folders(const Layers& layers) {
  std::vector<fs::path> folders;
  if (!layers.files.empty()) folders.push_back(fs::path(layers.files[0]).parent_path());
  folders.emplace_back("configs");
  if (!layers.floe_configs.empty()) folders.emplace_back(layers.floe_configs);
  return folders;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  return names;
}

// kind/NAME.yaml in the first folder that has it.
Value find_layer(const Layers& layers, const std::string& kind, const std::string& name,
                 const Origin& origin) {
  std::vector<std::string> looked, known;
  for (const fs::path& folder : search_folders(layers)) {
    const fs::path place = folder / kind;
    std::error_code ignored;
    const fs::path path = place / (name + ".yaml");
    if (fs::exists(path, ignored)) return read_layer(path.string());
    if (std::find(looked.begin(), looked.end(), place.string()) != looked.end()) continue;
    looked.push_back(place.string());
    for (std::string& found : names_in(place)) known.push_back(std::move(found));
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  throw ConfigError(str(origin.text(), ": there is no ", kind, " '", name, "': looked for ", name,
                        ".yaml in ", join(looked),
                        known.empty() ? ", which hold none" : ", which have ", join(known),
                        did_you_mean(name, known)));
}

bool is_name(const Value& value) {
  const auto* text = value.as<std::string>();
  return text && !text->empty() && text->find("..") == std::string::npos && text->front() != '/';
}

// The names in `experiment=a` or `experiment=[a, b]`.
std::vector<std::string> experiment_names(const Override& choice) {
  std::vector<std::string> names;
  const Value single[] = {choice.value};
  const auto* list = choice.value.as<List>();
  for (const Value& item : list ? std::span<const Value>(*list) : std::span<const Value>(single)) {
    require<ConfigError>(
        is_name(item), choice.value.origin.text(), ": ", item.shown(),
        " is no name; write experiment=[a, b] to take experiment/a.yaml and experiment/b.yaml");
    names.push_back(*item.as<std::string>());
  }
  return names;
}

}  // namespace

Layers layers_from_arguments(const std::vector<std::string>& arguments, std::string floe_configs) {
  Layers layers;
  layers.floe_configs = std::move(floe_configs);
  for (const std::string& argument : arguments)
    (is_override(argument) ? layers.overrides : layers.files).push_back(argument);
  return layers;
}

Composed compose(const Layers& layers) {
  std::vector<Override> changes;
  std::optional<Override> strategy, experiment;
  for (const std::string& argument : layers.overrides) {
    Override change = parse_override(argument);
    const bool sets = change.kind == Override::Kind::set;
    if (sets && change.key() == "experiment")
      experiment = std::move(change);
    else if (sets && change.key() == "strategy" && is_name(change.value))
      strategy = std::move(change);
    else
      changes.push_back(std::move(change));
  }

  Value root(Map(), Origin::of_default());
  if (!layers.base.is_null()) merge(root, layers.base);
  for (const std::string& file : layers.files) {
    Value layer = read_layer(file);
    if (!layers.block.empty()) {
      Value whole(Map(), layer.origin);
      (*whole.as<Map>())[layers.block] = std::move(layer);
      layer = std::move(whole);
    }
    merge(root, layer);
  }
  if (strategy) {
    Value block(Map(), strategy->value.origin);
    (*block.as<Map>())["strategy"] =
        find_layer(layers, "strategy", *strategy->value.as<std::string>(), strategy->value.origin);
    merge(root, block);
  }
  if (experiment)
    for (const std::string& name : experiment_names(*experiment))
      merge(root, find_layer(layers, "experiment", name, experiment->value.origin));
  std::vector<Override> removed;
  for (const Override& change : changes) {
    apply(change, root);
    if (change.kind == Override::Kind::remove) removed.push_back(change);
  }
  return {std::move(root), std::move(removed)};
}

}  // namespace floe::config
