#include "floe/shard/group/eight_bit_rows.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace floe::shard {
namespace {

constexpr std::int64_t kMostElements = 1 << 22;  // at once, or one row

// Elements [begin, end) of a group's flat sequence.
struct Elements {
  std::int64_t begin = 0, end = 0;
};

Elements elements_of(const kernels::EightBitSlices& layout, std::int64_t row) {
  const kernels::EightBitMatrix& matrix = layout.matrix_of(row);
  const std::int64_t begin = matrix.offset + (row - matrix.rows_before) * matrix.row_numel;
  return {begin, begin + matrix.row_numel};
}

// The largest magnitudes of cut rows.
class CutRows {
 public:
  CutRows(FlatGroup& group, const at::Tensor& values)
      : layout_(group.plan().eight_bit_slices), slice_(group.shard_rank()) {
    const auto rows = layout_.rows_of(slice_);
    at::Tensor own = at::zeros({2}, group.slice().options().dtype(at::kFloat));
    if (rows.count > 0) {
      own[0].copy_(largest_here(rows.first, values));
      own[1].copy_(largest_here(rows.first + rows.count - 1, values));
    }
    all_ = group.gather_slice(own).view({-1, 2});
  }

  // Of the first or last row of this rank's slice, as [1, 1].
  at::Tensor largest(std::int64_t row) const {
    const Elements elements = elements_of(layout_, row);
    at::Tensor result;
    for (std::int64_t slice = elements.begin / layout_.slice_numel;
         slice * layout_.slice_numel < elements.end; ++slice) {
      const at::Tensor part = all_[slice][layout_.rows_of(slice).first == row ? 0 : 1];
      result = result.defined() ? at::maximum(result, part) : part;
    }
    return result.view({1, 1});
  }

 private:
  at::Tensor largest_here(std::int64_t row, const at::Tensor& values) const {
    const Elements elements = elements_of(layout_, row);
    const std::int64_t start = slice_ * layout_.slice_numel;
    const std::int64_t begin = std::max(elements.begin - start, std::int64_t{0});
    const std::int64_t end = std::min(elements.end - start, layout_.slice_numel);
    return values.narrow(0, begin, end - begin).abs().max();
  }

  const kernels::EightBitSlices& layout_;
  std::int64_t slice_;
  at::Tensor all_;  // [ranks, 2]: of the first and of the last row of each slice
};

}  // namespace

void store_rows(FlatGroup& group, const Piece& piece, std::int64_t first_row,
                const kernels::EightBitRows& rows) {
  const kernels::EightBitSlices& layout = group.plan().eight_bit_slices;
  const at::Tensor& slice = group.slice();
  const std::int64_t first = first_row * rows.codes.size(1);
  const std::int64_t begin = std::max(first, piece.first);
  const std::int64_t end = std::min(first + rows.codes.numel(), piece.first + piece.numel);
  layout.codes(slice)
      .narrow(0, piece.slice_offset + begin - piece.first, end - begin)
      .copy_(rows.codes.view({-1}).narrow(0, begin - first, end - begin));
  layout.put_scales(slice, layout.matrices[piece.index].rows_before + first_row, rows.scales);
}

void store_slice(FlatGroup& group, const at::Tensor& values) {
  const at::AutoGradMode grad_off(false);
  const kernels::EightBitSlices& layout = group.plan().eight_bit_slices;
  const at::Tensor& slice = group.slice();
  const CutRows cut(group, values);
  slice.zero_();  // what pads it
  for (const Piece& piece : group.pieces()) {
    const kernels::EightBitMatrix& matrix = layout.matrices[piece.index];
    const std::int64_t most = std::max<std::int64_t>(1, kMostElements / matrix.row_numel);
    const std::int64_t end = piece.first + piece.numel;
    for (std::int64_t at = piece.first; at < end;) {
      const std::int64_t row = at / matrix.row_numel;
      const std::int64_t whole = at % matrix.row_numel == 0 ? (end - at) / matrix.row_numel : 0;
      const std::int64_t rows = std::clamp<std::int64_t>(whole, 1, most);
      const std::int64_t count =
          std::min(rows * matrix.row_numel - at % matrix.row_numel, end - at);
      const at::Tensor part = values.narrow(0, piece.slice_offset + at - piece.first, count)
                                  .to(group.device(), at::kFloat);
      kernels::EightBitRows made;
      if (whole > 0) {
        made =
            kernels::to_eight_bit(part.view({rows, matrix.row_numel}), group.plan().storage_dtype);
      } else {  // with the largest magnitude of the whole row behind it
        made = kernels::to_eight_bit(
            at::cat({part.view({1, count}), cut.largest(matrix.rows_before + row)}, 1),
            group.plan().storage_dtype);
        made.codes = made.codes.narrow(1, 0, count);
      }
      layout.codes(slice)
          .narrow(0, piece.slice_offset + at - piece.first, count)
          .copy_(made.codes.reshape({-1}));
      layout.put_scales(slice, matrix.rows_before + row, made.scales);
      at += count;
    }
  }
}

}  // namespace floe::shard
