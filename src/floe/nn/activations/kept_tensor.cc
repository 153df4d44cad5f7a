#include "floe/nn/activations/kept_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <unordered_map>
#include <utility>

#include "floe/core/log.h"
#include "floe/kernels/rehearsal.h"
#include "floe/nn/activations/host_store.h"

namespace floe::nn {
namespace {

std::uint32_t version_of(const c10::VariableVersion& counter) {
  return counter.enabled() ? counter.current_version() : 0;
}

// The same values and version, another tensor, without autograd.
at::Tensor alias_of(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

// All of it, in the order of memory.
at::Tensor flat(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1}, dense.storage_offset());
}

c10::Stream compute_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// The streams of copies out of a device and into it: neither waits for the other.
struct CopyStreams {
  c10::Stream out, in;

  static const CopyStreams& of(c10::Device device) {
    thread_local std::unordered_map<c10::Device, CopyStreams> streams;
    const auto found = streams.find(device);
    if (found != streams.end()) return found->second;
    const c10::impl::VirtualGuardImpl guard(device.type());
    const auto next = [&] { return guard.getStreamFromGlobalPool(device); };
    return streams.emplace(device, CopyStreams{next(), next()}).first->second;
  }
};

// Copies on `stream`, after everything that the compute stream has now. The event is that
// of its end.
c10::Event copy_on(c10::Stream stream, const at::Tensor& to, const at::Tensor& from) {
  const c10::Device device = stream.device();
  c10::Event ready(device.type()), done(device.type());
  ready.record(compute_stream(device));
  ready.block(stream);
  const c10::StreamGuard on_stream(stream);
  to.copy_(from, /*non_blocking=*/true);
  done.record(stream);
  return done;
}

}  // namespace

KeptTensor::KeptTensor(const at::Tensor& tensor)
    : here_(tensor),
      sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()),
      offset_(tensor.storage_offset()),
      options_(tensor.options()),
      storage_(tensor.storage().getWeakStorageImpl()),
      counter_(tensor.unsafeGetTensorImpl()->version_counter()),
      version_(version_of(counter_)) {}

KeptTensor::~KeptTensor() { wait_for_copies(); }

void KeptTensor::wait_for_copies() noexcept {
  try {
    for (auto* event : {&left_, &came_})
      if (*event) {
        (*event)->block(compute_stream(options_.device()));
        event->reset();
      }
  } catch (const std::exception& e) {
    log::debug("given up: ", e.what());
  }
}

void KeptTensor::leave(std::int64_t least_bytes) {
  if (away_.defined() || !here_.defined() || here_.numel() == 0 ||
      static_cast<std::int64_t>(here_.nbytes()) < least_bytes ||
      !here_.is_non_overlapping_and_dense())
    return;
  const at::AutoGradMode grad_off(false);
  away_ = store_empty(here_.numel(), here_.scalar_type(), here_.device());
  if (kernels::acts_as_cpu(here_)) {
    away_.copy_(flat(here_));
    here_.reset();
  } else {
    left_ = copy_on(CopyStreams::of(here_.device()).out, away_, flat(here_));
  }
}

void KeptTensor::settle() {
  if (!away_.defined() || !here_.defined() || !left_) return;
  wait_for_copies();
  here_.reset();
}

void KeptTensor::come_back() {
  if (here_.defined()) return;
  const at::AutoGradMode grad_off(false);
  const at::Tensor back = at::empty({away_.numel()}, options_);
  if (kernels::acts_as_cpu(back))
    back.copy_(away_);
  else
    came_ = copy_on(CopyStreams::of(back.device()).in, back, away_);
  here_ = back.as_strided(sizes_, strides_);
}

at::Tensor KeptTensor::get() {
  come_back();
  if (came_) wait_for_copies();
  return alias_of(here_);
}

bool KeptTensor::changed() const { return version_of(counter_) != version_; }
void KeptTensor::accept_changes() { version_ = version_of(counter_); }

bool KeptTensor::shares_storage_with(const at::Tensor& tensor) const {
  return tensor.has_storage() && !storage_.expired() &&
         storage_._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl();
}

bool KeptTensor::is(const at::Tensor& tensor) const {
  return shares_storage_with(tensor) && !changed() && tensor.storage_offset() == offset_ &&
         tensor.sizes() == at::IntArrayRef(sizes_) &&
         tensor.strides() == at::IntArrayRef(strides_) &&
         tensor.scalar_type() == c10::typeMetaToScalarType(options_.dtype());
}

KeptTensorPtr keep_shared(const at::Tensor& tensor) {
  thread_local std::vector<std::weak_ptr<KeptTensor>> kept;
  std::erase_if(kept, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : kept)
    if (const KeptTensorPtr one = weak.lock(); one && one->is(tensor)) return one;
  auto one = std::make_shared<KeptTensor>(tensor);
  kept.push_back(one);
  return one;
}

}  // namespace floe::nn
