#pragma once

#include <string_view>

namespace floe::test {

// How often `part` is in `text`.
inline int times(std::string_view text, std::string_view part) {
  int found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

}  // namespace floe::test
