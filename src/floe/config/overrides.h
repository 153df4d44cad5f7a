// Overrides of the command line:
//   train.steps=5          sets; what stood there is replaced, lists and blocks too
//   ++train.clip={norm: 2} adds: may be new, and a block merges with the block that is there
//   ~train.clip            removes: what can be off (an optional value or block, true or false) is
//                          off, anything else is back to its default
// Values are YAML on one line. Whether a key exists is the schema's business, not theirs.
#pragma once

#include <string>
#include <vector>

#include "floe/config/value.h"

namespace floe::config {

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
// Throws ConfigError when the path leads through something that is no block. What is removed need not
// be there: it may have a default (see load.h). `root` must be a map.
void apply(const Override& change, Value& root);

}  // namespace floe::config
