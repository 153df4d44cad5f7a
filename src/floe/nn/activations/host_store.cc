#include "floe/nn/activations/host_store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <atomic>
#include <cstdlib>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/kernels/rehearsal.h"

namespace floe::nn {
namespace {

constexpr std::size_t kAlignment = 64;
std::atomic<std::int64_t> in_use{0};

}  // namespace

at::Tensor store_empty(std::int64_t numel, c10::ScalarType dtype, c10::Device device) {
  const auto bytes = static_cast<std::size_t>(numel) * c10::elementSize(dtype);
  const auto count = static_cast<std::int64_t>(bytes);
  if (bytes == 0) return at::empty({0}, at::TensorOptions().dtype(dtype));
  if (device.is_meta()) {  // see Note [Rehearsal]
    const kernels::RehearsedHostMemory in_host;
    return at::empty({numel}, at::TensorOptions().dtype(dtype).device(device));
  }
  if (!device.is_cpu()) {
    // Held by a second tensor, whose end is the end of the first one's use.
    at::Tensor pinned = at::empty({numel}, at::TensorOptions().dtype(dtype).pinned_memory(true));
    in_use += count;
    return at::from_blob(
        pinned.mutable_data_ptr(), {numel},
        [pinned, count](void*) mutable {
          pinned.reset();
          in_use -= count;
        },
        pinned.options());
  }
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  require(
      memory != nullptr, "there is no host memory left for ", format_bytes(count),
      " that should rest there; let resting sets drop their state (optimizer_state: drop), keep "
      "activations on the device (strategy.activations.offload: false), or use more ranks");
  in_use += count;
  return at::from_blob(
      memory, {numel},
      [count](void* data) {
        std::free(data);
        in_use -= count;
      },
      at::TensorOptions().dtype(dtype));
}

std::int64_t stored_bytes() { return in_use; }

}  // namespace floe::nn
