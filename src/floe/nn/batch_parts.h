// What a pass reads of a batch, taken apart: tensors, whose values may change from one batch to the next,
// and numbers, which are built into the kernels' launches. Two batches whose numbers are equal run the
// same launches, so work that was recorded for one serves the other once its tensors are copied over.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace floe::nn {

struct BatchParts {
  std::vector<at::Tensor> tensors;
  std::vector<std::int64_t> numbers;

  void add(std::int64_t number) { numbers.push_back(number); }
  // Its shape and dtype are numbers, its values are not.
  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      add(std::int64_t{-1});
      return;
    }
    add(tensor.dim());
    numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
    add(static_cast<std::int64_t>(tensor.scalar_type()));
    tensors.push_back(tensor);
  }
};

}  // namespace floe::nn
