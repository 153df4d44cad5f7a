// A text of several lines as its lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace floe::diag {

// Without the line ends; an end behind the last line begins no other.
inline std::vector<std::string> text_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace floe::diag
