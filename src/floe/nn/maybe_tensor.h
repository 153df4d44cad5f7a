// Tensors that may be undefined, for torch's operators and autograd functions: an undefined tensor has no
// device, which those would ask it for.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace floe::nn {

using MaybeTensor = std::optional<at::Tensor>;

inline MaybeTensor some(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}
inline at::Tensor tensor_of(const MaybeTensor& maybe) { return maybe.value_or(at::Tensor()); }

}  // namespace floe::nn
