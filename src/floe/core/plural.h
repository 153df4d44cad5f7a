// "1 rank", "2 ranks".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace floe {

inline std::string counted(std::int64_t count, std::string_view noun) {
  std::string text = std::to_string(count) + " " + std::string(noun);
  if (count == 1) return text;
  // "batches", "passes", "boxes"
  const bool hisses = noun.ends_with("ch") || noun.ends_with("s") || noun.ends_with("x");
  return text + (hisses ? "es" : "s");
}

}  // namespace floe
