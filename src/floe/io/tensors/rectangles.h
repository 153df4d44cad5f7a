// A run of a tensor's elements as rectangles: what a slice of a flat buffer holds of a parameter, in
// the form in which torch.distributed.checkpoint stores it.
#pragma once

#include <cstdint>
#include <vector>

namespace floe {

// The elements offsets[d] <= i_d < offsets[d] + sizes[d].
struct Rectangle {
  std::vector<std::int64_t> offsets, sizes;

  std::int64_t numel() const;
};

// Elements [first, first + count) of a row-major tensor as the fewest rectangles, each of which is a
// run itself, in order: at most 2 × dimensions − 1 of them. None for count 0.
std::vector<Rectangle> rectangles_of(const std::vector<std::int64_t>& shape, std::int64_t first,
                                     std::int64_t count);

}  // namespace floe
