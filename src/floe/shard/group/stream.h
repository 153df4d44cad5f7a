// Work beside the computation: the communication stream of an accelerator, or nothing on the CPU.
//
// Note [Streams]
// What is issued through a SideStream begins after everything that is on the compute stream at
// that moment, so a buffer that the compute stream has finished with may be refilled at once;
// the compute stream sees the result after SideOp::wait; neither makes the host wait for an
// accelerator. On the CPU the caller runs the issue itself and `wait` blocks until the
// collective is done.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>
#include <utility>

#include "floe/comm/group.h"

namespace floe::shard {

class SideOp {
 public:
  SideOp() = default;
  SideOp(SideOp&& other) noexcept { *this = std::move(other); }
  SideOp& operator=(SideOp&& other) noexcept {
    pending_ = std::exchange(other.pending_, false);
    work_ = std::move(other.work_);
    then_ = std::move(other.then_);
    done_ = std::move(other.done_);
    return *this;
  }
  // Makes the compute stream (or, on the CPU, the caller) wait for the result.
  void wait();
  // The same; how many seconds that took on the host.
  double timed_wait();
  // Makes the host wait for the result.
  void wait_on_host();
  // Makes the compute stream wait, while whoever reads the result still has to.
  void hold_compute() const;
  bool pending() const { return pending_; }
  // Pending, and known to be over: `wait` costs nothing.
  bool done() const { return pending_ && !done_ && work_.done(); }

 private:
  friend class SideStream;
  bool pending_ = false;
  comm::Work work_;
  std::function<void()> then_;  // on the CPU: what the caller runs when the work is done
  std::optional<c10::Event> done_;
};

class SideStream {
 public:
  explicit SideStream(c10::Device device);
  // Runs `issue` with the side stream current, and `then`, if any, behind what it issued: on the
  // side stream, or on the CPU in SideOp::wait.
  SideOp run(const std::function<comm::Work()>& issue, std::function<void()> then = nullptr);
  // The same behind `first`, which another side stream runs; the compute stream need not wait for
  // that one. On the CPU `first` must be over.
  SideOp run_after(const SideOp& first, const std::function<comm::Work()>& issue);
  // A tensor that the stream works with may be let go of before the work is done: its memory
  // is not used again until then.
  void keeps(const at::Tensor& tensor) const;

 private:
  SideOp run_on_stream(const SideOp* first, const std::function<comm::Work()>& issue,
                       const std::function<void()>& then) const;

  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace floe::shard
