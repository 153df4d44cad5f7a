// From tensors to what the launchers take; for the files of this module that are built with CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "floe/core/error.h"
#include "floe/kernels/eight_bit/eight_bit.h"
#include "floe/kernels/eight_bit/eight_bit_launch.h"
#include "floe/kernels/launch.h"

namespace floe::kernels {

inline Type type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return Type::f32;
    case at::kHalf: return Type::f16;
    case at::kBFloat16: return Type::bf16;
    default: throw Error(str("the kernels do not compute in ", tensor.dtype().name()));
  }
}

// Of the matrices from `first` on, as many as travel with one launch.
EightBitJob job_of(const EightBitSlices& layout, at::ScalarType dtype, std::int64_t first);

// The device of a tensor is current while it lives; launches go to its stream.
class OnDevice {
 public:
  explicit OnDevice(const at::Tensor& tensor)
      : guard_(tensor.device()),
        stream_(c10::cuda::getCurrentCUDAStream(tensor.device().index())) {}
  operator cudaStream_t() const { return stream_.stream(); }
  ~OnDevice() noexcept(false) { C10_CUDA_KERNEL_LAUNCH_CHECK(); }

 private:
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace floe::kernels
