// Columns of text that line up.
#pragma once

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
  std::string text() const;

 private:
  std::vector<Align> columns_;
  std::size_t indent_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace floe
