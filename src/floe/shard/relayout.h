// How the groups of a new plan come from those of the plan before: each is one of them, or a part of
// one, because a set more only divides what is there.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "floe/shard/flat_group.h"

namespace floe::shard {

class Relayout {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // Where a trainable group comes from.
  struct Part {
    std::size_t from = kNone;     // the trainable group before; none: it was frozen
    FlatGroup* before = nullptr;  // null: it is the same group as before
    const FlatGroup* after = nullptr;
  };
  // By position among the trainable groups after.
  explicit Relayout(std::vector<Part> parts) : parts_(std::move(parts)) {}

  const std::vector<Part>& parts() const { return parts_; }

  // Slices of the trainable groups before, as slices of those after; what has none stays undefined. Parts
  // come out on the device. Collective; which slices are defined must be the same on all ranks.
  std::vector<at::Tensor> apply(const std::vector<at::Tensor>& slices) const;

 private:
  std::vector<Part> parts_;
};

// This rank's slice of `to`, cut out of a whole buffer of `from`, which has all parameters of `to`.
at::Tensor cut_slice(const at::Tensor& whole, const FlatGroup& from, const FlatGroup& to);

}  // namespace floe::shard
