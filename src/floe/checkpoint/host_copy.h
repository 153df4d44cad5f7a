// Copies of slices in host memory that is kept for the next save: what a save behind the training
// writes from.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "floe/checkpoint/run_state.h"

namespace floe::checkpoint {

class HostCopy {
 public:
  // The same tensors with values in this memory, which is theirs until the next call. Returns when
  // they are there. Pinned where they come from an accelerator.
  std::vector<StateTensor> of(std::vector<StateTensor> tensors);
  std::int64_t bytes() const;

 private:
  at::Tensor buffer_;
};

}  // namespace floe::checkpoint
