// From a command line to a typed configuration, and back to text that says where each value is from.
//
//   auto [config, values] = config::load<RootConfig>(config::layers_from_arguments(words, configs));
//   std::puts(config::print_config(values).c_str());
#pragma once

#include "floe/config/layers.h"
#include "floe/config/merge.h"
#include "floe/config/references.h"
#include "floe/config/schema.h"

namespace floe::config {

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
