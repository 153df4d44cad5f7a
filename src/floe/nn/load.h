// Tensors from files: the bytes of a TensorSource in torch's types.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/io/tensors/tensor_source.h"

namespace floe::nn {

at::ScalarType torch_dtype(DType dtype);
// Throws DataError for a type that files of tensors do not have.
DType file_dtype(at::ScalarType dtype);

// Elements [first, first + out.numel()) into `out`: contiguous, one-dimensional, of any dtype on
// any device. Host memory stays bounded, whatever the number.
void read_elements(const TensorSource& source, const TensorInfo& info, std::int64_t first,
                   const at::Tensor& out);
// A parameter's tensor under its first name or any other; null when there is none.
const TensorInfo* find_any(const TensorSource& source, const std::string& name,
                           const std::vector<std::string>& other_names);
// A whole tensor, in its own dtype on the CPU.
at::Tensor read_tensor(const TensorSource& source, const TensorInfo& info);

// Gives every deferred parameter memory on the device, in that dtype, and its values: from `source`
// under any of its names (null: none), else its initial values; the rest moves to the device. The
// model in one piece.
void materialize(torch::nn::Module& root, const TensorSource* source, std::uint64_t seed,
                 at::Device device, at::ScalarType dtype = at::kFloat);

}  // namespace floe::nn
