// From a command line to a typed configuration, and back to text that says where each value is
// from.
//
//   auto layers = config::layers_from_arguments(words, configs);
//   auto [config, values] = config::load<RootConfig>(layers);
//   std::puts(config::print_config(values).c_str());
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "floe/schema/schema.h"
#include "floe/schema/value.h"

namespace floe::config {

// Overrides of the command line:
//   train.steps=5          sets; what stood there is replaced, lists and blocks too
//   ++train.clip={norm: 2} adds: may be new, and a block merges with the block that is there
//   ~train.clip            removes: what can be off (an optional value or block, true or false) is
//                          off, anything else is back to its default
// Values are YAML on one line. Whether a key exists is the schema's business, not theirs.
struct Override {
  enum class Kind { set, add, remove };
  Kind kind = Kind::set;
  std::vector<std::string> path;
  Value value;       // null for remove
  std::string text;  // as written

  std::string key() const;  // the path with dots
};

// True for what must be an override rather than the path of a YAML file.
bool is_override(const std::string& argument);
// Throws ConfigError that says how to write it.
Override parse_override(const std::string& argument);
// Throws ConfigError when the path leads through something that is no block. What is removed need
// not be there: it may have a default (see load.h). `root` must be a map.
void apply(const Override& change, Value& root);

// Composition of a configuration from its layers; later ones win:
//   the YAML files in their order < strategy=NAME < experiment=[a, b] < the command line.
// (The defaults of the schema lie below all of them, see load.h.)
//
// `strategy=NAME` with a bare word, or `strategy: NAME` in a file, merges strategy/NAME.yaml into
// the block `strategy:`;
// `experiment=[a, b]` merges experiment/a.yaml, then b, at the root. Both are looked for beside the
// first YAML, in ./configs, then in floe's own configs.
struct Layers {
  std::vector<std::string> files;      // YAML, in order
  std::vector<std::string> overrides;  // key=value, ++key=value, ~key, in order
  std::string floe_configs;            // floe's own configs folder; empty: none
  std::string block = {};  // of a configuration, which is all that the files hold; empty: none
  Value base = {};         // a configuration below the files; null: none
};

// Splits the words of a command line into files and overrides.
Layers layers_from_arguments(const std::vector<std::string>& arguments, std::string floe_configs);

struct Composed {
  Value tree;                     // always a map; references are not resolved
  std::vector<Override> removed;  // by ~key, in order; not in the tree unless it was set again
};

// Throws ConfigError.
Composed compose(const Layers& layers);

// Note [References]
// ${run.dir} is the value at that path, ${env:HOME} an environment variable, ${env:NAME:fallback}
// one with a fallback, $${ a literal "${".
//
// A value that is nothing but one reference takes the other's type (a number stays a number, a list
// a list); inside longer text the other must be a scalar.

// A variable's value, or nothing when it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_environment(const std::string& name);

// Replaces every reference in the tree (Note [References]). Throws ConfigError with the origin of
// the value for unknown names, cycles, and trees that would grow beyond the bounds of value.h. What
// a reference brings keeps the origin of the place that refers.
void resolve_references(Value& root, const Environment& environment = process_environment);

// Writes "$${" for every "${", so that resolving gives the tree again.
void escape_references(Value& root);

template <class T>
struct Loaded {
  T config;
  Value values;  // every value of `config`, with its origin
};

// Gives each value in `values` the origin (and spelling) of the value at its place in `from`;
// "default" where there is none.
void adopt_origins(Value& values, const Value& from);

// What the change removed comes from it now.
void set_origin(Value& values, const Override& change);

// What --print-config shows: YAML that, read again, gives the same configuration.
std::string print_config(const Value& values);

// From a tree, with these fields removed from the defaults below it.
template <Described T>
Loaded<T> load(const Value& tree, const std::vector<Override>& removed = {},
               const Environment& environment = process_environment) {
  T defaults{};
  Problems problems;
  for (const Override& change : removed)
    schema_of<T>().remove(defaults, change.path, change.value, Place{"", problems});
  problems.throw_if_any();
  Value all = schema_of<T>().write(defaults, Write::defaults);
  adopt_origins(all, Value());
  for (const Override& change : removed) set_origin(all, change);
  const Origin top = tree.origin;
  merge(all, tree);
  all.origin = top;
  resolve_references(all, environment);
  Loaded<T> loaded{bind<T>(all), {}};
  loaded.values = schema_of<T>().write(loaded.config, Write::all);
  adopt_origins(loaded.values, all);
  return loaded;
}

template <Described T>
Loaded<T> load(const Layers& layers, const Environment& environment = process_environment) {
  const Composed composed = compose(layers);
  return load<T>(composed.tree, composed.removed, environment);
}

}  // namespace floe::config
