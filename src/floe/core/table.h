// Columns of text that line up, and the shares that stand in them.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace floe {

enum class Align { left, right };

class Table {
 public:
  // `indent` spaces stand in front of every line but the first.
  Table(std::vector<Align> columns, std::size_t indent)
      : columns_(std::move(columns)), indent_(indent) {}
  // Missing cells are empty.
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Without line ends.
  std::vector<std::string> lines() const;
  // Each with a line end.
  std::string text() const;

 private:
  std::vector<Align> columns_;
  std::size_t indent_;
  std::vector<std::vector<std::string>> rows_;
};

// "62%"
template <class Number>
std::string percent(Number part, Number whole) {
  const double share =
      whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
  return std::to_string(std::lround(share)) + "%";
}

}  // namespace floe
