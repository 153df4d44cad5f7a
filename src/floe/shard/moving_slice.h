// A slice that is on the device while somebody works with it, and in host memory while nobody does.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>

#include "floe/shard/stream.h"

namespace floe::shard {

class MovingSlice {
 public:
  MovingSlice() = default;
  // On the device, or (see store_empty) in the store already.
  explicit MovingSlice(at::Tensor values, bool stored = false)
      : values_(std::move(values)), stored_(stored) {}
  // Memory that a copy still writes to is not given back before the copy is over.
  ~MovingSlice() { settle(); }
  MovingSlice(MovingSlice&&) noexcept = default;
  MovingSlice& operator=(MovingSlice&& other) noexcept {
    settle();
    values_ = std::move(other.values_);
    stored_ = other.stored_;
    arrival_ = std::move(other.arrival_);
    leaving_ = std::move(other.leaving_);
    return *this;
  }

  bool defined() const { return values_.defined(); }
  bool stored() const { return stored_; }
  // Wherever it is, ready to be used there: waits for a copy under way.
  const at::Tensor& values() const;

  // Out: after everything that is on the compute stream; the device's memory is free for what comes
  // after that. The host does not wait.
  void store();
  // Back: behind the computation; `values` waits for it.
  void fetch(c10::Device device, SideStream& side);
  void drop() { *this = MovingSlice(); }

  std::int64_t device_bytes() const { return stored_ ? 0 : bytes(); }
  std::int64_t stored_bytes() const { return stored_ ? bytes() : 0; }

 private:
  void settle() noexcept;
  std::int64_t bytes() const {
    return values_.defined() ? static_cast<std::int64_t>(values_.nbytes()) : 0;
  }

  at::Tensor values_;
  bool stored_ = false;
  mutable SideOp arrival_;                     // back on the device
  mutable std::optional<c10::Event> leaving_;  // until the copy in the store is whole
};

}  // namespace floe::shard
