#include "floe/shard/fill.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <vector>

#include "floe/core/error.h"
#include "floe/io/tensor_source.h"
#include "floe/nn/init.h"
#include "floe/nn/module.h"

namespace floe::shard {
namespace {

c10::ScalarType torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::f64: return at::kDouble;
    case DType::f32: return at::kFloat;
    case DType::f16: return at::kHalf;
    case DType::bf16: return at::kBFloat16;
    case DType::f8_e4m3: return at::kFloat8_e4m3fn;
    case DType::f8_e5m2: return at::kFloat8_e5m2;
    case DType::i64: return at::kLong;
    case DType::i32: return at::kInt;
    case DType::i16: return at::kShort;
    case DType::i8: return at::kChar;
    case DType::u8: return at::kByte;
    case DType::boolean: return at::kBool;
  }
  throw DataError("a tensor file has a dtype that torch does not know");
}

// Under its first name or any other.
const TensorInfo* find(const PlannedParameter& parameter, const TensorSource& source) {
  if (const TensorInfo* info = source.find(parameter.name)) return info;
  for (const auto& name : parameter.other_names)
    if (const TensorInfo* info = source.find(name)) return info;
  return nullptr;
}

void read_elements(const TensorInfo& info, const TensorSource& source, std::int64_t first,
                   at::Tensor out) {
  constexpr std::int64_t kStep = std::int64_t{1} << 22;  // bounded host memory, whatever the slice
  const auto dtype = torch_dtype(info.dtype);
  at::Tensor buffer = at::empty({std::min(kStep, out.numel())}, at::TensorOptions().dtype(dtype));
  for (std::int64_t done = 0; done < out.numel(); done += kStep) {
    const std::int64_t count = std::min(kStep, out.numel() - done);
    source.read(info, first + done, count,
                {static_cast<std::byte*>(buffer.mutable_data_ptr()),
                 static_cast<std::size_t>(count * size_of(info.dtype))});
    out.narrow(0, done, count).copy_(buffer.narrow(0, 0, count));
  }
}

}  // namespace

void check_source(const ShardPlan& plan, const ShardOptions& options) {
  std::vector<std::string> defects;
  for (const PlannedParameter& parameter : plan.parameters) {
    const TensorInfo* info = options.source ? find(parameter, *options.source) : nullptr;
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
  at::Tensor shard = group.shard();
  const std::int64_t used = [&] {
    const auto pieces = group.pieces();
    return pieces.empty() ? 0 : pieces.back().shard_offset + pieces.back().numel;
  }();
  if (used < shard.numel()) shard.narrow(0, used, shard.numel() - used).zero_();
  for (const Piece& piece : group.pieces()) {
    const PlannedParameter& parameter = group.parameter(piece.index);
    at::Tensor out = shard.narrow(0, piece.shard_offset, piece.numel);
    const TensorInfo* info = options.source ? find(parameter, *options.source) : nullptr;
    if (info)
      read_elements(*info, *options.source, piece.first, out);
    else if (nn::is_hollow(parameter.tensor))
      nn::fill(*parameter.init, options.seed, parameter.name, piece.first, out);
    else
      out.copy_(parameter.tensor.detach().reshape({-1}).narrow(0, piece.first, piece.numel));
  }
}

}  // namespace floe::shard
