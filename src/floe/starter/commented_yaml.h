// A configuration as YAML with a comment on every value: what the key means, in the schema's own
// words, and why it has this value.
#pragma once

#include <string>
#include <vector>

#include "floe/schema/codec.h"
#include "floe/schema/value.h"

namespace floe::starter {

struct Entry {
  std::string key;  // "data.laion.shards"
  config::Value value;
  std::string why;         // a sentence; empty: the meaning says enough
  bool suggested = false;  // the line itself is a comment
};

// Neighbours of one block stand together, in the order of the entries. `head` comes first, as
// comments. Every key must be one of `fields`.
std::string commented_yaml(const std::string& head, const std::vector<Entry>& entries,
                           const std::vector<config::FieldInfo>& fields);

// Text as lines of comments of at most 100 columns; a line break in it is one here, and lines that
// begin with a space are kept as they are.
std::string comment(const std::string& text, std::size_t indent);

// The entries as a tree, without those that are only suggested.
config::Value tree_of(const std::vector<Entry>& entries);

}  // namespace floe::starter
