#include "floe/nn/load.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "floe/core/error.h"
#include "floe/nn/module.h"

namespace floe::nn {

at::ScalarType torch_dtype(DType dtype) {
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

DType file_dtype(at::ScalarType dtype) {
  for (const DType known :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::i64,
        DType::i32, DType::i16, DType::i8, DType::u8, DType::boolean})
    if (torch_dtype(known) == dtype) return known;
  throw DataError(str("tensors of type ", at::toString(dtype), " cannot be written to a file"));
}

void read_elements(const TensorSource& source, const TensorInfo& info, std::int64_t first,
                   const at::Tensor& out) {
  constexpr std::int64_t kStep = std::int64_t{1} << 20;
  const at::ScalarType dtype = torch_dtype(info.dtype);
  // Straight into its place where nothing has to be converted or moved. Buffers that come and go
  // between long-lived slices would leave holes in the heap, more than their own size.
  const bool straight = out.is_cpu() && out.scalar_type() == dtype && out.is_contiguous();
  at::Tensor buffer;
  if (!straight)
    buffer = at::empty({std::min(kStep, out.numel())}, at::TensorOptions().dtype(dtype));
  for (std::int64_t done = 0; done < out.numel(); done += kStep) {
    const std::int64_t count = std::min(kStep, out.numel() - done);
    const at::Tensor part = out.narrow(0, done, count);
    const at::Tensor piece = straight ? part : buffer.narrow(0, 0, count);
    source.read(info, first + done, count,
                {static_cast<std::byte*>(piece.mutable_data_ptr()),
                 static_cast<std::size_t>(count * size_of(info.dtype))});
    if (!straight) part.copy_(piece);
  }
}

const TensorInfo* find_any(const TensorSource& source, const std::string& name,
                           const std::vector<std::string>& other_names) {
  const TensorInfo* info = source.find(name);
  for (std::size_t i = 0; !info && i < other_names.size(); ++i) info = source.find(other_names[i]);
  return info;
}

at::Tensor read_tensor(const TensorSource& source, const TensorInfo& info) {
  at::Tensor tensor = at::empty(info.shape, at::TensorOptions().dtype(torch_dtype(info.dtype)));
  source.read(
      info, 0, info.numel(),
      {static_cast<std::byte*>(tensor.mutable_data_ptr()), static_cast<std::size_t>(info.bytes())});
  return tensor;
}

void materialize(torch::nn::Module& root, const TensorSource* source, std::uint64_t seed,
                 at::Device device, at::ScalarType dtype) {
  const at::AutoGradMode grad_off(false);
  for (NamedParameter& parameter : named_parameters(root)) {
    if (!is_deferred(parameter.tensor)) {
      if (parameter.tensor.device() != device)
        parameter.tensor.set_data(parameter.tensor.to(device));
      continue;
    }
    const TensorInfo* info =
        source ? find_any(*source, parameter.name, parameter.other_names) : nullptr;
    const at::Tensor value =
        at::empty(parameter.tensor.sizes(), at::TensorOptions().dtype(dtype).device(device));
    if (info) {
      read_elements(*source, *info, 0, value.view({-1}));
    } else {
      require(parameter.init != nullptr, "parameter '", parameter.name, "' has no initial values");
      fill(*parameter.init, seed, parameter.name, 0, value.view({-1}));
    }
    const bool trains = parameter.tensor.requires_grad();
    parameter.tensor.requires_grad_(false);
    parameter.tensor.set_data(value);
    parameter.tensor.requires_grad_(trains);
  }
  for (auto& buffer : root.buffers())
    if (buffer.device() != device) buffer.set_data(buffer.to(device));
}

void materialize(torch::nn::Module& root, std::uint64_t seed, at::Device device) {
  materialize(root, nullptr, seed, device);
}

}  // namespace floe::nn
