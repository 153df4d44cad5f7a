#include "floe/io/tensors/rectangles.h"

#include <algorithm>

#include "floe/core/error.h"

namespace floe {
namespace {

// Adds the run [first, end) of the tensor below dimension `depth`; `at` is the way to it.
void add_runs(const std::vector<std::int64_t>& shape, std::size_t depth, std::int64_t first,
              std::int64_t end, std::vector<std::int64_t>& at, std::vector<Rectangle>& out) {
  if (first == end) return;
  std::int64_t row = 1;  // elements of one step in this dimension
  for (std::size_t d = depth + 1; d < shape.size(); ++d) row *= shape[d];
  const auto add_rows = [&](std::int64_t begin, std::int64_t rows) {
    Rectangle box{at, std::vector<std::int64_t>(at.size(), 1)};
    box.offsets.push_back(begin);
    box.sizes.push_back(rows);
    for (std::size_t d = depth + 1; d < shape.size(); ++d) {
      box.offsets.push_back(0);
      box.sizes.push_back(shape[d]);
    }
    out.push_back(std::move(box));
  };
  const auto add_part = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    at.push_back(index);
    add_runs(shape, depth + 1, from, to, at, out);
    at.pop_back();
  };
  const std::int64_t whole = (first + row - 1) / row;  // the first row that is all in
  const std::int64_t last = end / row;                 // the first one that is not
  if (first % row != 0) add_part(first / row, first % row, std::min(end - first / row * row, row));
  if (last > whole) add_rows(whole, last - whole);
  if (end % row != 0 && last >= whole) add_part(last, 0, end % row);
}

}  // namespace

std::int64_t Rectangle::numel() const {
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) numel *= size;
  return numel;
}

std::vector<Rectangle> rectangles_of(const std::vector<std::int64_t>& shape, std::int64_t first,
                                     std::int64_t count) {
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) numel *= size;
  require(first >= 0 && count >= 0 && count <= numel - first, "elements ", first, " to ",
          first + count, " are not all in a tensor of shape [", join(shape), "]");
  if (count == 0) return {};
  if (shape.empty()) return {Rectangle{}};
  std::vector<Rectangle> boxes;
  std::vector<std::int64_t> at;
  add_runs(shape, 0, first, first + count, at, boxes);
  return boxes;
}

}  // namespace floe
