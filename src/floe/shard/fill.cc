#include "floe/shard/fill.h"

#include <string>
#include <vector>

#include "floe/core/error.h"
#include "floe/io/tensor_source.h"
#include "floe/nn/init.h"
#include "floe/nn/load.h"
#include "floe/nn/module.h"

namespace floe::shard {
namespace {

const TensorInfo* find(const PlannedParameter& parameter, const ShardOptions& options) {
  if (!options.source) return nullptr;
  return nn::find_any(*options.source, parameter.name, parameter.other_names);
}

}  // namespace

void check_source(const ShardPlan& plan, const ShardOptions& options) {
  std::vector<std::string> defects;
  for (const PlannedParameter& parameter : plan.parameters) {
    const TensorInfo* info = find(parameter, options);
    if (info && info->shape != parameter.shape)
      defects.push_back(str("'", parameter.name, "' has shape [", join(info->shape),
                            "] in the file and [", join(parameter.shape), "] in the model"));
    if (!info && !parameter.init && nn::is_hollow(parameter.tensor))
      defects.push_back(str(
          "'", parameter.name,
          "' is in no file and has no initial values: add it to the source, or register it with an "
          "Init"));
  }
  require<DataError>(defects.empty(), "the weights do not fit the model: ", join(defects, "; "));
}

void fill_group(FlatGroup& group, const ShardOptions& options) {
  const at::AutoGradMode grad_off(false);
  at::Tensor shard = group.values();
  const std::int64_t used = [&] {
    const auto pieces = group.pieces();
    return pieces.empty() ? 0 : pieces.back().shard_offset + pieces.back().numel;
  }();
  if (used < shard.numel()) shard.narrow(0, used, shard.numel() - used).zero_();
  for (const Piece& piece : group.pieces()) {
    const PlannedParameter& parameter = group.parameter(piece.index);
    at::Tensor out = shard.narrow(0, piece.shard_offset, piece.numel);
    const TensorInfo* info = find(parameter, options);
    if (info)
      nn::read_elements(*options.source, *info, piece.first, out);
    else if (nn::is_hollow(parameter.tensor))
      nn::fill(*parameter.init, options.seed, parameter.name, piece.first, out);
    else
      out.copy_(parameter.tensor.detach().reshape({-1}).narrow(0, piece.first, piece.numel));
  }
  group.values_changed();
}

void read_group(FlatGroup& group, const ShardOptions& options) {
  const at::AutoGradMode grad_off(false);
  const at::Tensor values = group.values();
  for (const Piece& piece : group.pieces())
    if (const TensorInfo* info = find(group.parameter(piece.index), options))
      nn::read_elements(*options.source, *info, piece.first,
                        values.narrow(0, piece.shard_offset, piece.numel));
}

}  // namespace floe::shard
