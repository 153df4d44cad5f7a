#include "floe/config/load.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/schema/yaml_text.h"

namespace floe::config {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostSegments = 16;  // with a value inside, still below kMostDepth

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

// `strategy: NAME` in a layer is strategy/NAME.yaml, as strategy=NAME is.
void take_named_strategy(Value& layer, const Layers& layers) {
  Value* strategy = layer.as<Map>()->find("strategy");
  if (strategy && is_name(*strategy))
    *strategy = find_layer(layers, "strategy", *strategy->as<std::string>(), strategy->origin);
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

bool is_key(const std::string& key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return c > ' ' && c != 0x7f &&
           std::string_view("\"'{}[],:#&*!|>%@`=~+$").find(static_cast<char>(c)) ==
               std::string_view::npos;
  });
}

std::string dotted(const std::vector<std::string>& path, std::size_t count) {
  return join(
      std::vector<std::string>(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(count)),
      ".");
}

// The map that holds the last key of the path; created on the way when `create`, else null when it
// is not there.
Map* parent_of(const Override& change, Value& root, bool create) {
  Value* value = &root;
  for (std::size_t i = 0; i + 1 < change.path.size(); ++i) {
    Map& map = *value->as<Map>();
    value = map.find(change.path[i]);
    if (!value || (create && value->is_null())) {
      if (!create) return nullptr;
      value = &map[change.path[i]];
      *value = Value(Map(), change.value.origin);
    }
    const std::string here = dotted(change.path, i + 1);
    require<ConfigError>(value->as<Map>(), change.value.origin.text(), ": ", here, " is ",
                         value->shown(), " (", value->origin.text(), "), which has no '",
                         change.path[i + 1], "'; set ", here, " itself");
  }
  return value->as<Map>();
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
    if (sets && change.key() == "experiment") {
      require<ConfigError>(!experiment, change.value.origin.text(),
                           ": experiment is given twice, and both are meant; write "
                           "experiment=[a, b]");
      experiment = std::move(change);
    } else if (sets && change.key() == "strategy" && is_name(change.value)) {
      strategy = std::move(change);
    } else {
      changes.push_back(std::move(change));
    }
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
    take_named_strategy(layer, layers);
    merge(root, layer);
  }
  if (strategy) {
    Value block(Map(), strategy->value.origin);
    (*block.as<Map>())["strategy"] =
        find_layer(layers, "strategy", *strategy->value.as<std::string>(), strategy->value.origin);
    merge(root, block);
  }
  if (experiment)
    for (const std::string& name : experiment_names(*experiment)) {
      Value layer = find_layer(layers, "experiment", name, experiment->value.origin);
      take_named_strategy(layer, layers);
      merge(root, layer);
    }
  std::vector<Override> removed;
  for (const Override& change : changes) {
    apply(change, root);
    if (change.kind == Override::Kind::remove) removed.push_back(change);
  }
  return {std::move(root), std::move(removed)};
}

std::string Override::key() const { return join(path, "."); }

// No key has a '/', but folders are called lr=1e-4.
bool is_override(const std::string& argument) {
  const std::size_t equals = argument.find('=');
  if (argument.substr(0, equals).find('/') != std::string::npos) return false;
  return argument.starts_with("~") || argument.starts_with("++") || equals != std::string::npos;
}

Override parse_override(const std::string& argument) {
  const Origin origin = Origin::of_argument(argument);
  const auto check = [&](bool condition, const auto&... parts) {
    require<ConfigError>(condition, origin.text(), ": ", parts...);
  };
  Override change;
  change.text = argument;
  std::string key = argument;
  const std::size_t equals = argument.find('=');
  if (argument.starts_with('~')) {
    check(equals == std::string::npos, "'~' removes a key and takes no value; write ",
          argument.substr(0, std::min(equals, argument.size())));
    change.kind = Override::Kind::remove;
    change.value.origin = origin;
    key = argument.substr(1);
  } else {
    check(equals != std::string::npos, "write key=value, ++key=value or ~key");
    if (argument.starts_with("++")) change.kind = Override::Kind::add;
    const std::size_t begin = change.kind == Override::Kind::add ? 2 : 0;
    check(equals >= begin, "the key is missing; write ++key=value");
    key = argument.substr(begin, equals - begin);
    // key=$VARIABLE with a variable that is not set would switch off what can be off.
    check(equals + 1 < argument.size(), "there is no value behind '='; write ", key,
          "=null where none is meant");
    change.value = parse_inline_yaml(argument.substr(equals + 1), origin);
  }
  change.path = split_path(key);
  check(change.path.size() <= kMostSegments &&
            std::all_of(change.path.begin(), change.path.end(), is_key),
        "'", key, "' is not a key; write words joined by dots, such as train.optimizer.lr");
  check(depth_of(change.value) + static_cast<int>(change.path.size()) <= kMostDepth,
        "the value is nested too deeply");
  return change;
}

void apply(const Override& change, Value& root) {
  Map* map = parent_of(change, root, change.kind != Override::Kind::remove);
  const std::string& key = change.path.back();
  switch (change.kind) {
    case Override::Kind::remove:
      if (map) map->erase(key);
      break;
    case Override::Kind::add: merge((*map)[key], change.value); break;
    case Override::Kind::set: (*map)[key] = change.value; break;
  }
}

void adopt_origins(Value& values, const Value& from) {
  static const Value kNone;
  values.origin = from.origin.source ? from.origin : Origin::of_default();
  if (values.data.index() == from.data.index() && values == from) values.spelling = from.spelling;
  const Map* other_map = from.as<Map>();
  if (auto* map = values.as<Map>())
    for (auto& [key, value] : *map) {
      const Value* other = other_map ? other_map->find(key) : nullptr;
      adopt_origins(value, other ? *other : kNone);
    }
  const List* other_list = from.as<List>();
  if (auto* list = values.as<List>())
    for (std::size_t i = 0; i < list->size(); ++i)
      adopt_origins((*list)[i], other_list && i < other_list->size() ? (*other_list)[i] : kNone);
}

void set_origin(Value& values, const Override& change) {
  Value* value = &values;
  for (const std::string& key : change.path) {
    Map* map = value->as<Map>();
    value = map ? map->find(key) : nullptr;
    if (!value) return;
  }
  if (value->is_scalar()) value->origin = change.value.origin;
}

std::string print_config(const Value& values) {
  Value copy = values;
  escape_references(copy);
  return write_yaml(copy, Comments::origins);
}

}  // namespace floe::config
