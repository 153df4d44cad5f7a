#include "floe/shard/group/stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "floe/core/stopwatch.h"

namespace floe::shard {

void SideOp::wait() {
  if (!std::exchange(pending_, false)) return;
  work_.wait();
  if (const auto then = std::exchange(then_, nullptr)) then();
  if (done_) {
    const c10::impl::VirtualGuardImpl guard(done_->device_type());
    done_->block(guard.getStream(done_->device()));
    done_.reset();
  }
}

double SideOp::timed_wait() {
  const Stopwatch watch;
  wait();
  return watch.seconds();
}

SideStream::SideStream(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

SideOp SideStream::run(const std::function<comm::Work()>& issue, std::function<void()> then) {
  SideOp op;
  op.pending_ = true;
  if (!stream_) {
    op.work_ = issue();
    op.then_ = std::move(then);
    return op;
  }
  const c10::impl::VirtualGuardImpl guard(device_.type());
  c10::Event ready(device_.type());
  ready.record(guard.getStream(device_));
  ready.block(*stream_);
  c10::StreamGuard on_side(*stream_);
  issue().wait();  // the side stream waits, not the host
  if (then) then();
  op.done_.emplace(device_.type());
  op.done_->record(*stream_);
  return op;
}

}  // namespace floe::shard
