#include "floe/checkpoint/tensor_copier.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <span>

#include "floe/core/error.h"

namespace floe::checkpoint {
namespace {

constexpr std::int64_t kBlock = 8 << 20;

}  // namespace

pickle::Value TensorCopier::copy(const std::string& name) {
  const TensorInfo& info = from_.get(name);
  const pickle::Value value = to_.declare(name, info.dtype, info.shape);
  write(name, info, 0, info.numel());
  return value;
}

pickle::Value TensorCopier::copy(const std::string& name, const FileTensor& tensor,
                                 const std::function<std::string(const std::string&)>& name_of) {
  const pickle::Value value = to_.declare(name, DType::f32, tensor.shape);
  for (const FileRun& run : tensor.runs) {
    const std::string source = name_of(run.parameter);
    if (source.empty())
      write_zeros(name, run.count * size_of(DType::f32));
    else
      write_as_floats(name, from_.get(source), run.first, run.count);
  }
  return value;
}

void TensorCopier::write(const std::string& name, const TensorInfo& info, std::int64_t first,
                         std::int64_t count) {
  const std::int64_t most = kBlock / size_of(info.dtype);
  for (std::int64_t at = 0; at < count; at += most) {
    const std::int64_t part = std::min(most, count - at);
    block_.resize(static_cast<std::size_t>(part * size_of(info.dtype)));
    from_.read(info, first + at, part, block_);
    to_.write(name, block_);
  }
}

void TensorCopier::write_as_floats(const std::string& name, const TensorInfo& info,
                                   std::int64_t first, std::int64_t count) {
  if (info.dtype == DType::f32) return write(name, info, first, count);
  const bool half = info.dtype == DType::f16;
  require<CheckpointError>(half || info.dtype == DType::bf16, "'", info.name, "' has type ",
                           name_of(info.dtype),
                           ", which a file in OpenFlamingo's layout cannot take; use "
                           "state_dict_type: sharded or full");
  std::vector<std::uint32_t> wide;  // the bits of floats
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const std::int64_t part = std::min(kBlock, count - at);
    block_.resize(static_cast<std::size_t>(part * size_of(DType::bf16)));
    from_.read(info, first + at, part, block_);
    const auto* narrow = reinterpret_cast<const std::uint16_t*>(block_.data());
    wide.assign(narrow, narrow + part);
    for (std::uint32_t& bits : wide)
      bits =
          half ? c10::detail::fp16_ieee_to_fp32_bits(static_cast<std::uint16_t>(bits)) : bits << 16;
    to_.write(name, std::as_bytes(std::span(wide)));
  }
}

void TensorCopier::write_zeros(const std::string& name, std::int64_t bytes) {
  for (; bytes > 0; bytes -= kBlock) {
    block_.assign(static_cast<std::size_t>(std::min(bytes, kBlock)), std::byte{});
    to_.write(name, block_);
  }
}

}  // namespace floe::checkpoint
