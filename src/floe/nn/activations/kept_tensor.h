// A tensor that backward will need: on its device, or meanwhile in the host store.
//
// Note [Tensors that leave]
// `leave` copies to the host store on a stream of its own, behind the computation. The device's
// memory is held until `settle`, which lets the compute stream wait for the copy: what is computed
// afterwards may have that memory, however far the host runs ahead of the device. `come_back`
// copies the other way, again on a stream of its own; `get` lets the compute stream wait for it.
// The host waits for nothing. On the CPU copies are over at once, and memory is given back as soon
// as the computation lets go of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace floe::nn {

class KeptTensor {
 public:
  explicit KeptTensor(const at::Tensor& tensor);
  ~KeptTensor();
  KeptTensor(const KeptTensor&) = delete;
  KeptTensor& operator=(const KeptTensor&) = delete;

  // Begins to copy a tensor of at least so many bytes to the host store.
  void leave(std::int64_t least_bytes);
  // Gives the device's memory back, where a copy is in the store.
  void settle();
  // Begins to copy it back, unless it is there.
  void come_back();
  // Without autograd, on its device and ready to be used there.
  at::Tensor get();

  // Whether somebody has written to the tensor since it was kept.
  bool changed() const;
  // What has been written so far belongs to the value; only for what has not left.
  void accept_changes();
  // Whether this is the value of `tensor`, unchanged.
  bool is(const at::Tensor& tensor) const;
  bool shares_storage_with(const at::Tensor& tensor) const;

 private:
  void wait_for_copies() noexcept;

  // Undefined while it is away. The tensor itself: a parameter may have other memory in backward.
  at::Tensor here_;
  at::Tensor away_;  // flat; undefined if it has never left
  std::vector<std::int64_t> sizes_, strides_;
  std::int64_t offset_;
  at::TensorOptions options_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;  // tells two storages at one address apart
  c10::VariableVersion counter_;
  std::uint32_t version_;
  std::optional<c10::Event> left_, came_;  // copies that the compute stream has not waited for
};
using KeptTensorPtr = std::shared_ptr<KeptTensor>;

// The same for the same tensor while it is kept: what several modules read leaves once.
KeptTensorPtr keep_shared(const at::Tensor& tensor);

}  // namespace floe::nn
