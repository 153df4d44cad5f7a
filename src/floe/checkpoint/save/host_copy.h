// Copies of slices in host memory that is kept for the next save: what a save behind the training
// writes from. Not for several threads at once.
//
// Note [Memory of the first save]
// Memory that an accelerator copies to without being waited for must be page-locked, and the driver
// lets nobody else in while it does that: 14 GB made by one call would hold the training for eight
// seconds, of which most go into finding pages. So the memory is made by a thread of its own beside
// the training, as soon as there is a state whose size is known, piece by piece: pages of a piece
// are touched first, which is the host's own business, and then locked, in less than a millisecond.
// The save waits for what is left of that. Copies end where a piece ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "floe/checkpoint/run_state.h"

namespace floe::checkpoint {

class HostCopy {
 public:
  HostCopy() = default;
  ~HostCopy() { settle(); }
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  // Begins to make memory for these, if there is not enough, and returns. Copies of the last call
  // of `of` stay as they are; their memory goes with the last of them.
  void prepare(const std::vector<StateTensor>& tensors);
  // The same tensors with values in this memory, which is theirs until the next call. Returns when
  // they are there. Page-locked where they come from an accelerator.
  std::vector<StateTensor> of(std::vector<StateTensor> tensors);
  // Of the memory, with what is being made.
  std::int64_t bytes() const;

 private:
  // Takes over what was prepared.
  void settle() noexcept;

  at::Tensor buffer_;
  std::thread maker_;
  std::int64_t making_bytes_ = 0;  // of `maker_`
  at::Tensor made_;                // by `maker_`; read after it has been joined
};

}  // namespace floe::checkpoint
