// Finds the longest of a set of tokens at the leftmost place of a text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace floe::token {

class TokenTrie {
 public:
  TokenTrie();
  // Of two equal tokens the first one added counts. The token must not be empty.
  void add(std::string_view token, std::int32_t value);
  bool empty() const { return nodes_.size() == 1; }

  struct Match {
    std::size_t begin, end;
    std::int32_t value;
  };
  // The next match at or behind `from`; false when there is none.
  bool find(std::string_view text, std::size_t from, Match& match) const;

 private:
  struct Node {
    std::int32_t value = -1;
    std::vector<std::pair<unsigned char, std::int32_t>> children;
  };

  std::int32_t child(std::int32_t node, unsigned char byte) const;

  std::vector<Node> nodes_;
  std::array<std::int32_t, 256> first_;  // children of the root, -1: none
  int only_first_ = -1;                  // the byte that every token begins with, -1: several
};

}  // namespace floe::token
