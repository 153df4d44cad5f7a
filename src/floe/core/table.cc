#include "floe/core/table.h"

#include <algorithm>

namespace floe {
namespace {

// Characters, not bytes: continuation bytes of UTF-8 do not count.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::vector<std::string> Table::lines() const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t c = 0; c < rows_[r].size(); ++c) {
      const std::size_t indent = c == 0 && r > 0 ? indent_ : 0;
      widths[c] = std::max(widths[c], width_of(rows_[r][c]) + indent);
    }
  std::vector<std::string> lines;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (std::size_t c = 0; c < rows_[r].size(); ++c) {
      std::string cell = c == 0 && r > 0 ? std::string(indent_, ' ') : "";
      cell += rows_[r][c];
      const std::string fill(widths[c] - width_of(cell), ' ');
      if (c > 0) line += "  ";
      line += columns_[c] == Align::left ? cell + fill : fill + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string Table::text() const {
  std::string text;
  for (const std::string& line : lines()) text += line + "\n";
  return text;
}

}  // namespace floe
