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

// What --print-config shows: YAML that, read again, gives the same configuration.
std::string print_config(const Value& values);

// From a tree that compose() made, or any other.
template <Described T>
Loaded<T> load(const Value& composed, const Environment& environment = process_environment) {
  Value tree = schema_of<T>().write(T{}, Write::defaults);
  adopt_origins(tree, Value());
  const Origin top = composed.origin;
  merge(tree, composed);
  tree.origin = top;
  resolve_references(tree, environment);
  Loaded<T> loaded{bind<T>(tree), {}};
  loaded.values = schema_of<T>().write(loaded.config, Write::all);
  adopt_origins(loaded.values, tree);
  return loaded;
}

template <Described T>
Loaded<T> load(const Layers& layers, const Environment& environment = process_environment) {
  return load<T>(compose(layers), environment);
}

}  // namespace floe::config
