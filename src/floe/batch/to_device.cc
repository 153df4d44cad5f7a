#include "floe/batch/to_device.h"

namespace floe {

at::Tensor to_device(const at::Tensor& tensor, const at::Device& device) {
  if (tensor.device() == device) return tensor;
  const bool pin = tensor.is_cpu() && device.is_cuda();
  return (pin ? tensor.pin_memory() : tensor)
      .to(device, tensor.scalar_type(), /*non_blocking=*/pin);
}

}  // namespace floe
