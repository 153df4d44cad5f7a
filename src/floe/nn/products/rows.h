// Tensors of any number of dimensions as the rows of a matrix, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace floe::nn {

inline at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// The sizes of x with so many columns instead of its own.
inline std::vector<std::int64_t> with_columns(const at::Tensor& x, std::int64_t columns) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = columns;
  return sizes;
}

}  // namespace floe::nn
