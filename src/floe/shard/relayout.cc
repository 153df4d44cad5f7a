#include "floe/shard/relayout.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

namespace floe::shard {

at::Tensor cut_slice(const at::Tensor& whole, const FlatGroup& from, const FlatGroup& to) {
  const at::AutoGradMode grad_off(false);
  at::Tensor slice = at::zeros({to.plan().layout.shard_numel()}, whole.options());
  for (const Piece& piece : to.pieces()) {
    std::size_t place = 0;
    while (from.parameter(place).name != to.parameter(piece.index).name) ++place;
    const std::int64_t offset = from.plan().layout.offset(place);
    slice.narrow(0, piece.shard_offset, piece.numel)
        .copy_(whole.narrow(0, offset + piece.first, piece.numel));
  }
  return slice;
}

std::vector<at::Tensor> Relayout::apply(const std::vector<at::Tensor>& slices) const {
  std::vector<at::Tensor> result(parts_.size());
  at::Tensor whole;  // of one group at a time
  std::size_t gathered = kNone;
  for (std::size_t n = 0; n < parts_.size(); ++n) {
    const Part& part = parts_[n];
    if (part.from == kNone || !slices[part.from].defined()) continue;
    if (!part.before) {
      result[n] = slices[part.from];
      continue;
    }
    if (gathered != part.from) {
      whole = at::Tensor();
      whole = part.before->gather_slice(slices[part.from]);
      gathered = part.from;
    }
    result[n] = cut_slice(whole, *part.before, *part.after);
  }
  return result;
}

}  // namespace floe::shard
