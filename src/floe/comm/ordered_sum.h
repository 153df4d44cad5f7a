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
  // Adds `numel` elements at `source`, which must stay as they are until `finish`.
  void add(const void* source);
  // Writes the sum of all that was added, which is something, divided by `divisor`; also over the
  // elements of one source.
  void finish(void* destination, int divisor);

 private:
  // What is there goes to `destination`, or where that is null into `sum_`, with `next` behind it.
  void put_together(void* destination, int divisor, const void* next);

  at::ScalarType dtype_;
  std::int64_t numel_ = 0;
  // Sources are added when there is a third one, so that two cost one pass: in order `sum_`, if
  // `summed_`, else `first_`; then `last_`.
  const void *first_ = nullptr, *last_ = nullptr;
  bool summed_ = false;
  std::vector<std::byte> sum_;
};

}  // namespace floe::comm
