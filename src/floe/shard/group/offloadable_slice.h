// A slice that is on the device while somebody works with it, and in host memory while nobody does.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>

#include "floe/shard/group/stream.h"

namespace floe::shard {

class OffloadableSlice {
 public:
  OffloadableSlice() = default;
  // On the device, or (see store_empty) in the store already.
  explicit OffloadableSlice(at::Tensor values, bool stored = false)
      : values_(std::move(values)), stored_(stored) {}
  // Memory that a copy still writes to is not given back before the copy is over.
  ~OffloadableSlice() { settle(); }
  OffloadableSlice(OffloadableSlice&&) noexcept = default;
  OffloadableSlice& operator=(OffloadableSlice&& other) noexcept {
    settle();
    values_ = std::move(other.values_);
    stored_ = other.stored_;
    awaited_ = std::move(other.awaited_);
    side_ = other.side_;
    arrival_ = std::move(other.arrival_);
    leaving_ = std::move(other.leaving_);
    return *this;
  }

  bool defined() const { return values_.defined(); }
  bool stored() const { return stored_; }
  // Wherever it is, ready to be used there: waits for a copy under way, and begins one that is due.
  const at::Tensor& values() const;

  // Out: after everything that is on the compute stream; the device's memory is free for what comes
  // after that. The host does not wait.
  void store();
  // Back: takes its place on the device, where the values are due. They come with
  // `prefetch`, behind the computation, or at the latest with `values`, which also gives up
  // what is in the store.
  void fetch(c10::Device device, SideStream& side);
  void prefetch() const;
  // To be read only: as `values`, but out of the store as long as it is there. Does not wait for
  // the computation, which may be stuck.
  const at::Tensor& held() const;
  void drop() { *this = OffloadableSlice(); }

  std::int64_t device_bytes() const { return stored_ ? 0 : bytes(); }
  // With those that nobody has used on the device yet, which has their place already.
  std::int64_t stored_bytes() const { return stored_ || awaited_.defined() ? bytes() : 0; }
  // Of those, what is not on its way yet.
  std::int64_t due_bytes() const { return awaited_.defined() && side_ ? bytes() : 0; }

 private:
  void settle() noexcept;
  std::int64_t bytes() const {
    return values_.defined() ? static_cast<std::int64_t>(values_.nbytes()) : 0;
  }

  at::Tensor values_;
  bool stored_ = false;
  // In the store, until they are used on the device for the first time.
  mutable at::Tensor awaited_;
  mutable SideStream* side_ = nullptr;         // on which they are to come
  mutable SideOp arrival_;                     // back on the device
  mutable std::optional<c10::Event> leaving_;  // until the copy in the store is whole
};

}  // namespace floe::shard
