// Host memory for what rests: slices of a set that does not train, activations that wait for
// backward.
//
// Note [Host store]
// Beside an accelerator it is pinned, so that copies run behind the computation. On the CPU, where
// device and host are one, it is taken past torch's allocator: counters of that allocator see what
// training needs, and the store is counted here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace floe::nn {

// Not initialised. `device`: where the values come from and go to.
at::Tensor store_empty(std::int64_t numel, c10::ScalarType dtype, c10::Device device);

// What this process holds in the store now.
std::int64_t stored_bytes();

}  // namespace floe::nn
