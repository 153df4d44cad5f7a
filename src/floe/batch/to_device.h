// From the host to a device without waiting for it.
#pragma once

#include <ATen/core/Tensor.h>

namespace floe {

// A copy on the device of what lies on the CPU; for the CPU, the tensor itself. The copy is ordered on
// the current stream and goes through pinned memory of torch's own cache, so the host goes on at once.
at::Tensor to_device(const at::Tensor& tensor, const at::Device& device);

}  // namespace floe
