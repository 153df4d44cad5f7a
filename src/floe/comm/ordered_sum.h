// Sums of the same element over ranks, in rank order: the one place where CPU reductions round.
//
// Note [Ordered sums]
// Contributions are added one after the other in rank order: ((g0 + g1) + g2) + g3, then divided by
// the number of ranks for a mean. fp16 and bf16 are summed in fp32 and rounded once. The result is
// the same on every run and equals, bit for bit, a single process that adds the ranks' gradients in
// rank order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace floe::comm {

class OrderedSum {
 public:
  // Throws CommError for a dtype that cannot be summed.
  OrderedSum(at::ScalarType dtype, std::int64_t capacity_numel);

  void begin(std::int64_t numel);
  // Adds `numel` elements at `source`; the first call after `begin` sets instead.
  void add(const void* source);
  // Writes the sum divided by `divisor`.
  void finish(void* destination, int divisor);

 private:
  at::ScalarType dtype_;
  std::int64_t numel_ = 0;
  bool first_ = true;
  std::vector<std::byte> sum_;
};

}  // namespace floe::comm
