// Composition of a configuration from its layers; later ones win:
//   the YAML files in their order < strategy=NAME < experiment=[a, b] < the command line.
// (The defaults of the schema lie below all of them, see load.h.)
//
// `strategy=NAME` with a bare word merges strategy/NAME.yaml into the block `strategy:`;
// `experiment=[a, b]` merges experiment/a.yaml, then b, at the root. Both are looked for beside the
// first YAML, in ./configs, then in floe's own configs.
#pragma once

#include <string>
#include <vector>

#include "floe/config/overrides.h"
#include "floe/config/value.h"

namespace floe::config {

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

}  // namespace floe::config
