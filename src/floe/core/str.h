// Building strings from parts: `str("rank ", rank, " of ", world)`.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace floe {

template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// "a, b, c"
template <class Range>
std::string join(const Range& items, std::string_view separator = ", ") {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out << separator;
    first = false;
    out << item;
  }
  return out.str();
}

}  // namespace floe
