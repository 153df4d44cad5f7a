#include "floe/checkpoint/host_copy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "floe/core/bytes.h"

namespace floe::checkpoint {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t room(const at::Tensor& values) {
  return round_up(static_cast<std::int64_t>(values.nbytes()), kAlignment);
}

}  // namespace

std::vector<StateTensor> HostCopy::of(std::vector<StateTensor> tensors) {
  const at::AutoGradMode grad_off(false);
  std::int64_t bytes = 0;
  c10::Device device = c10::kCPU;
  for (const StateTensor& tensor : tensors)
    for (const StatePiece& piece : tensor.pieces) {
      bytes += room(piece.values);
      if (!piece.values.device().is_cpu()) device = piece.values.device();
    }
  if (!buffer_.defined() || buffer_.numel() < bytes) {
    buffer_.reset();  // the old one goes before the new one comes
    buffer_ =
        at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(!device.is_cpu()));
  }
  std::int64_t at = 0;
  for (StateTensor& tensor : tensors)
    for (StatePiece& piece : tensor.pieces) {
      const auto size = static_cast<std::int64_t>(piece.values.nbytes());
      at::Tensor copy = buffer_.narrow(0, at, size).view(piece.values.scalar_type());
      copy.copy_(piece.values, /*non_blocking=*/true);
      at += room(piece.values);
      piece.values = copy;
    }
  if (!device.is_cpu()) {
    const c10::impl::VirtualGuardImpl accelerator(device.type());
    accelerator.synchronizeStream(accelerator.getStream(device));
  }
  return tensors;
}

std::int64_t HostCopy::bytes() const {
  return buffer_.defined() ? static_cast<std::int64_t>(buffer_.nbytes()) : 0;
}

}  // namespace floe::checkpoint
