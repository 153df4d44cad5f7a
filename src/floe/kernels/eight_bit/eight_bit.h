// Matrices in one byte per element with one fp32 scale per row: value = code · scale, rounded once.
//
// Note [Eight bits]
// The matrices of a group lie one after the other in one flat sequence of elements, which is cut
// into equal slices wherever that falls, also inside a row. A slice is `slice_numel` codes and
// then, fp32, `num_scales` places for scales. Rows are counted through the whole group, and the
// scale of row g has place g mod num_scales in every slice that has a part of the row. The rows of
// a slice follow one another and are never more than the places, so no two share one; whoever reads
// or writes a slice needs to know nothing of the others. A scale depends on its row alone: however
// the group is cut, the same values come out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace floe::kernels {

// One matrix [rows, row_numel] of a group.
struct EightBitMatrix {
  std::int64_t offset = 0;       // of its first element in the flat sequence
  std::int64_t rows_before = 0;  // of the matrices before it
  std::int64_t row_numel = 0;
};

// How the slices of a group look.
struct EightBitSlices {
  static constexpr std::int64_t kAlignment = 128;  // bytes; slice_numel is a multiple

  EightBitSlices() = default;
  EightBitSlices(const std::vector<std::pair<std::int64_t, std::int64_t>>& shapes,
                 std::int64_t slice_numel, int num_slices);

  std::vector<EightBitMatrix> matrices;  // in flat order
  std::int64_t numel = 0, num_rows = 0;
  std::int64_t slice_numel = 0, num_slices = 0;
  std::int64_t num_scales = 0;  // places in each slice

  std::int64_t slice_bytes() const;
  // The matrix that a row, counted through the group, is of.
  const EightBitMatrix& matrix_of(std::int64_t row) const;
  // Which row the element is in, counted through the group.
  std::int64_t row_of(std::int64_t element) const;
  struct Rows {
    std::int64_t first = 0, count = 0;
  };
  // Those that a slice has a part of.
  Rows rows_of(std::int64_t slice) const;

  // The two parts of a slice [slice_bytes], as bytes and as fp32.
  at::Tensor codes(const at::Tensor& slice) const;
  at::Tensor scales(const at::Tensor& slice) const;
  // The codes of all slices [num_slices · slice_bytes] one after the other, and every row's scale.
  at::Tensor all_codes(const at::Tensor& slices) const;
  at::Tensor all_scales(const at::Tensor& slices) const;
  // Rows [first, first + scales.numel()) get these scales in a slice.
  void put_scales(const at::Tensor& slice, std::int64_t first, const at::Tensor& scales) const;
};

// Which 8 bits: at::kChar (symmetric, ±127) or at::kFloat8_e4m3fn (±448).
bool is_eight_bit(at::ScalarType dtype);

struct EightBitRows {
  at::Tensor codes;   // [rows, row_numel] bytes
  at::Tensor scales;  // [rows] fp32; not finite where the row is not
};
// Of fp32 values [rows, row_numel]: a row's largest magnitude becomes the largest code. The same
// bits on every device.
// Also at::kFloat8_e5m2 (±57344), which nothing is stored in.
EightBitRows to_eight_bit(const at::Tensor& values, at::ScalarType dtype);

// Writes the values of all slices [num_slices · slice_bytes] to `out` [num_slices ·
// slice_numel] in fp32, fp16 or bf16, both on one device; what pads the end is not written. The
// same bits everywhere.
void from_eight_bit(const EightBitSlices& layout, at::ScalarType dtype, const at::Tensor& slices,
                    const at::Tensor& out);

}  // namespace floe::kernels
