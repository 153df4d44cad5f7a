#include "floe/shard/group/offloadable_slice.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <utility>

#include "floe/core/log.h"
#include "floe/nn/activations/host_store.h"

namespace floe::shard {

const at::Tensor& OffloadableSlice::values() const {
  prefetch();
  arrival_.wait();
  awaited_.reset();
  if (leaving_) {
    leaving_->synchronize();
    leaving_.reset();
  }
  return values_;
}

const at::Tensor& OffloadableSlice::held() const {
  return awaited_.defined() ? awaited_ : values();
}

void OffloadableSlice::settle() noexcept {
  try {
    arrival_.wait();
  } catch (const std::exception& e) {
    log::debug("given up: ", e.what());
  }
}

void OffloadableSlice::store() {
  if (stored_ || !values_.defined()) return;
  if (awaited_.defined()) {  // nobody has used it since it was here last
    arrival_.wait();
    side_ = nullptr;
    values_ = std::exchange(awaited_, at::Tensor());
    stored_ = true;
    return;
  }
  const at::AutoGradMode grad_off(false);
  arrival_.wait();
  const c10::Device device = values_.device();
  const at::Tensor host = nn::store_empty(values_.numel(), values_.scalar_type(), device);
  host.copy_(values_, /*non_blocking=*/true);
  if (!device.is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    leaving_.emplace(device.type());
    leaving_->record(guard.getStream(device));
  }
  values_ = host;
  stored_ = true;
}

void OffloadableSlice::fetch(c10::Device device, SideStream& side) {
  if (!stored_) return;
  const at::AutoGradMode grad_off(false);
  const at::Tensor host = values();
  values_ = at::empty(host.sizes(), host.options().device(device).pinned_memory(false));
  stored_ = false;
  awaited_ = host;
  side_ = &side;
}

void OffloadableSlice::prefetch() const {
  if (!awaited_.defined() || !side_) return;
  const at::AutoGradMode grad_off(false);
  arrival_ = std::exchange(side_, nullptr)->run([&]() -> comm::Work {
    values_.copy_(awaited_, /*non_blocking=*/true);
    return {};
  });
}

}  // namespace floe::shard
