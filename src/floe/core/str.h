// Building strings from parts: `str("rank ", rank, " of ", world)`.
#pragma once

#include <cstdint>
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

// "1 rank", "2 ranks", "2 batches"
inline std::string counted(std::int64_t count, std::string_view noun) {
  std::string text = std::to_string(count) + " " + std::string(noun);
  if (count == 1) return text;
  const bool hisses = noun.ends_with("ch") || noun.ends_with("s") || noun.ends_with("x");
  return text + (hisses ? "es" : "s");
}

}  // namespace floe
