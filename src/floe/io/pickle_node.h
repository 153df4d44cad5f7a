// Inside of pickle values: the content that Value shares, by kind. For the pickle_*.cc only.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "floe/io/pickle_value.h"

namespace floe::pickle {

struct Chars : Node {  // text, bytes, big_integer
  explicit Chars(std::string chars) : chars(std::move(chars)) {}
  std::string chars;
};

struct Sequence : Node {  // list, tuple, set, frozen_set
  Items items;
  void clear() override { items.clear(); }
};

struct Mapping : Node {  // dict
  Entries entries;
  void clear() override { entries.clear(); }
};

struct Persistent : Node {
  Value id;
  void clear() override { id = Value(); }
};

// Why recursion over the value would be unsafe (a cycle, too deep), as a part of a sentence; empty
// when it is safe. Sets the height of every node that it reached.
std::string_view shape_problem(const Value& root);

template <class Content>
Content& as(const std::shared_ptr<Node>& node) {
  return static_cast<Content&>(*node);
}

}  // namespace floe::pickle
