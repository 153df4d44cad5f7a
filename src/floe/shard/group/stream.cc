#include "floe/shard/group/stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "floe/core/stopwatch.h"
#include "floe/kernels/rehearsal.h"

namespace floe::shard {

void SideOp::wait() {
  if (!std::exchange(pending_, false)) return;
  work_.wait();
  if (const auto then = std::exchange(then_, nullptr)) then();
  hold_compute();
  done_.reset();
}

void SideOp::hold_compute() const {
  if (!done_) return;
  const c10::impl::VirtualGuardImpl guard(done_->device_type());
  done_->block(guard.getStream(done_->device()));
}

void SideOp::wait_on_host() {
  if (!std::exchange(pending_, false)) return;
  work_.wait();
  if (const auto then = std::exchange(then_, nullptr)) then();
  if (done_) done_->synchronize();
  done_.reset();
}

double SideOp::timed_wait() {
  const Stopwatch watch;
  wait();
  return watch.seconds();
}

SideStream::SideStream(c10::Device device) : device_(device) {
  if (kernels::acts_as_cpu(device)) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

SideOp SideStream::run(const std::function<comm::Work()>& issue, std::function<void()> then) {
  if (!stream_) {
    SideOp op;
    op.pending_ = true;
    op.work_ = issue();
    op.then_ = std::move(then);
    return op;
  }
  return run_on_stream(nullptr, issue, then);
}

SideOp SideStream::run_after(const SideOp& first, const std::function<comm::Work()>& issue) {
  return stream_ ? run_on_stream(&first, issue, nullptr) : run(issue);
}

void SideStream::keeps(const at::Tensor& tensor) const {
  if (stream_) tensor.record_stream(*stream_);
}

SideOp SideStream::run_on_stream(const SideOp* first, const std::function<comm::Work()>& issue,
                                 const std::function<void()>& then) const {
  SideOp op;
  op.pending_ = true;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  c10::Event ready(device_.type());
  ready.record(guard.getStream(device_));
  ready.block(*stream_);
  if (first && first->done_) first->done_->block(*stream_);
  c10::StreamGuard on_side(*stream_);
  issue().wait();  // the side stream waits, not the host
  if (then) then();
  op.done_.emplace(device_.type());
  op.done_->record(*stream_);
  return op;
}

}  // namespace floe::shard
