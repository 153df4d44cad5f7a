#include "floe/shard/group/fill.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/nn/init.h"
#include "floe/nn/load.h"
#include "floe/nn/module.h"
#include "floe/shard/group/eight_bit_rows.h"

namespace floe::shard {
namespace {

const TensorInfo* find(const PlannedParameter& parameter, const TensorSource* source) {
  return source ? nn::find_any(*source, parameter.name, parameter.other_names) : nullptr;
}

// Elements of a parameter from `first` on, into `out`.
using Read = std::function<void(std::int64_t first, const at::Tensor& out)>;

// Of a parameter in 8 bits: the rows that this rank has a part of are read whole, for their scales.
void fill_rows(FlatGroup& group, const Piece& piece, const Read& read) {
  constexpr std::int64_t kMostElements = 1 << 20;  // at once, or one row
  const PlannedParameter& parameter = group.parameter(piece.index);
  const std::int64_t row_numel = parameter.shape[1];
  const std::int64_t end = ceil_div(piece.first + piece.numel, row_numel);
  const std::int64_t step = std::max<std::int64_t>(1, kMostElements / row_numel);
  for (std::int64_t row = piece.first / row_numel; row < end; row += step) {
    const std::int64_t rows = std::min(step, end - row);
    const at::Tensor values = at::empty({rows, row_numel}, at::TensorOptions().dtype(at::kFloat));
    read(row * row_numel, values.view({-1}));
    // Where the slice is: a GPU rounds in the time that the host needs to read the next rows.
    const auto codes =
        kernels::to_eight_bit(values.to(group.slice().device()), group.plan().storage_dtype);
    const at::Tensor infinite = codes.scales.isfinite().logical_not();
    if (infinite.any().item<bool>())
      throw DataError(
          str("parameter '", parameter.name, "' has a value that is not finite in row ",
              row + infinite.to(at::kByte).argmax().item<std::int64_t>(),
              ", which 8 bits cannot hold; repair the weights, or leave FrozenOptions::",
              group.plan().multiplied ? "compute" : "dtype", " out"));
    store_rows(group, piece, row, codes);
  }
}

void fill_piece(FlatGroup& group, const Piece& piece, const Read& read) {
  if (group.plan().eight_bit_alone())
    fill_rows(group, piece, read);
  else
    read(piece.first, group.values().narrow(0, piece.slice_offset, piece.numel));
}

}  // namespace

void check_source(const ShardPlan& plan, const ShardOptions& options) {
  std::vector<std::string> defects;
  for (const PlannedParameter& parameter : plan.parameters) {
    const TensorInfo* info = find(parameter, options.source);
    if (info && info->shape != parameter.shape)
      defects.push_back(str("'", parameter.name, "' has shape [", join(info->shape),
                            "] in the file and [", join(parameter.shape), "] in the model"));
    if (!info && !parameter.init && nn::is_deferred(parameter.tensor))
      defects.push_back(str(
          "'", parameter.name,
          "' is in no file and has no initial values: add it to the source, or register it with an "
          "Init"));
  }
  require<DataError>(defects.empty(), "the weights do not fit the model: ", join(defects, "; "));
}

void fill_group(FlatGroup& group, const ShardOptions& options) {
  if (group.slice().is_meta()) return;  // a rehearsal has no values
  const at::AutoGradMode grad_off(false);
  if (group.plan().eight_bit_alone()) {
    group.slice().zero_();
  } else {
    const auto pieces = group.pieces();
    const at::Tensor values = group.values();
    const std::int64_t used = pieces.empty() ? 0 : pieces.back().slice_offset + pieces.back().numel;
    values.narrow(0, used, values.numel() - used).zero_();
  }
  SharedReads reads;
  for (const Piece& piece : group.pieces()) {
    const PlannedParameter& parameter = group.parameter(piece.index);
    const TensorInfo* info = find(parameter, options.source);
    fill_piece(group, piece, [&](std::int64_t first, const at::Tensor& out) {
      if (info)
        reads.read(group, *options.source, *info, first, out);
      else if (nn::is_deferred(parameter.tensor))
        nn::fill(*parameter.init, options.seed, parameter.name, first, out);
      else
        out.copy_(parameter.tensor.detach().reshape({-1}).narrow(0, first, out.numel()));
    });
  }
  reads.finish();
  group.values_changed();
}

void read_group(FlatGroup& group, const TensorSource& source, SharedReads& reads) {
  const at::AutoGradMode grad_off(false);
  for (const Piece& piece : group.pieces())
    if (const TensorInfo* info = find(group.parameter(piece.index), &source))
      fill_piece(group, piece, [&](std::int64_t first, const at::Tensor& out) {
        reads.read(group, source, *info, first, out);
      });
}

}  // namespace floe::shard
