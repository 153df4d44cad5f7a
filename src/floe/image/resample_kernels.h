// The inner loops of resampling. The plain ones also finish what the others leave at edges.
#pragma once

#include "floe/image/resample.h"

namespace floe::image {

// Pixel i of a row.
void pixel_plain(const Weights& weights, int i, const std::uint8_t* row, std::uint8_t* out);
// Bytes [begin, end) of result i of the other axis; `top` is the first row of its window.
void bytes_plain(const Weights& weights, int i, const std::uint8_t* top, std::size_t stride,
                 std::size_t begin, std::size_t end, std::uint8_t* out);

// For each set of instructions:
// Row y and some behind it; returns how many rows are done (0: too near to the end of memory).
int rows_avx2(const Weights& weights, const Rows& in, int y, int num_rows, std::uint8_t* out);
// The first bytes of result i of the other axis; returns how many are done.
std::size_t bytes_avx2(const Weights& weights, int i, const std::uint8_t* top, std::size_t stride,
                       std::size_t width, std::uint8_t* out);

int rows_vnni(const Weights& weights, const Rows& in, int y, int num_rows, std::uint8_t* out);
std::size_t bytes_vnni(const Weights& weights, int i, const std::uint8_t* top, std::size_t stride,
                       std::size_t width, std::uint8_t* out);

}  // namespace floe::image
