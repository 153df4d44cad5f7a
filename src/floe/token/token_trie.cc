#include "floe/token/token_trie.h"

#include <cstring>

namespace floe::token {

TokenTrie::TokenTrie() : nodes_(1) { first_.fill(-1); }

std::int32_t TokenTrie::child(std::int32_t node, unsigned char byte) const {
  if (node == 0) return first_[byte];
  for (const auto& [label, next] : nodes_[static_cast<std::size_t>(node)].children)
    if (label == byte) return next;
  return -1;
}

void TokenTrie::add(std::string_view token, std::int32_t value) {
  std::int32_t node = 0;
  for (const char c : token) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_.emplace_back();
      if (node == 0)
        first_[byte] = next;
      else
        nodes_[static_cast<std::size_t>(node)].children.emplace_back(byte, next);
    }
    node = next;
  }
  auto& own = nodes_[static_cast<std::size_t>(node)].value;
  if (own < 0) own = value;

  int count = 0;
  for (int byte = 0; byte < 256; ++byte)
    if (first_[static_cast<std::size_t>(byte)] >= 0) {
      ++count;
      only_first_ = byte;
    }
  if (count != 1) only_first_ = -1;
}

bool TokenTrie::find(std::string_view text, std::size_t from, Match& match) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (only_first_ >= 0) {
      const void* place = std::memchr(text.data() + begin, only_first_, text.size() - begin);
      if (!place) return false;
      begin = static_cast<std::size_t>(static_cast<const char*>(place) - text.data());
    }
    std::int32_t node = first_[static_cast<unsigned char>(text[begin])];
    match.value = -1;
    for (std::size_t at = begin + 1; node >= 0; ++at) {
      if (const std::int32_t value = nodes_[static_cast<std::size_t>(node)].value; value >= 0)
        match = {begin, at, value};
      if (at == text.size()) break;
      node = child(node, static_cast<unsigned char>(text[at]));
    }
    if (match.value >= 0) return true;
  }
  return false;
}

}  // namespace floe::token
