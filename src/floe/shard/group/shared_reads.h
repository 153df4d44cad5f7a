// Reading what several ranks hold: each a part, which they give to each other.
//
// Note [Copies read together]
// Ranks that hold the same slice (`hybrid`, `no_shard`, what is resident) want the same bytes of
// the same files. If each read all of them, a model would be read as often as it has copies: 128
// times on 1,024 ranks with eight to a copy. So every one of them reads an equal part of each run
// of elements and gathers the rest from the others. What is small is read by all.
// They must make the same calls in the same order. A rank that cannot read goes on, so that nobody
// waits for it, and says what was wrong in `finish`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>

#include "floe/io/tensors/tensor_source.h"
#include "floe/shard/group/flat_group.h"

namespace floe::shard {

class SharedReads {
 public:
  // Collective over the ranks that hold copies of the group's slice: elements of a tensor from
  // `first` on, into `out`.
  void read(const FlatGroup& group, const TensorSource& source, const TensorInfo& info,
            std::int64_t first, const at::Tensor& out);
  // What is no collective, and may fail on one rank alone.
  void attempt(const std::function<void()>& work);
  // Throws what this rank could not read.
  void finish();

 private:
  std::exception_ptr failure_;  // the first
};

}  // namespace floe::shard
