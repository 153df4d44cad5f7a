#include "floe/config/overrides.h"

#include <algorithm>

#include "floe/config/merge.h"
#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/core/names.h"

namespace floe::config {
namespace {

constexpr std::size_t kMostSegments = 16;  // with a value inside, still below kMostDepth

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

std::string Override::key() const { return join(path, "."); }

bool is_override(const std::string& argument) {
  return argument.starts_with("~") || argument.starts_with("++") ||
         argument.find('=') != std::string::npos;
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

}  // namespace floe::config
