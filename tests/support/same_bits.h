#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>

namespace floe::test {

// Whether two contiguous tensors of the CPU have the same shape, dtype and bits: NaN is like NaN,
// and -0 is not like 0.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

}  // namespace floe::test
