#include "floe/checkpoint/save/host_copy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/file/file.h"
#include "floe/kernels/page_lock.h"

namespace floe::checkpoint {
namespace {

constexpr std::int64_t kAlignment = 64;
// What is page-locked at once; see Note [Memory of the first save]. Whole huge pages.
constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

// Bytes of a host copy.
std::int64_t room(const at::Tensor& values) {
  return round_up(static_cast<std::int64_t>(values.nbytes()), kAlignment);
}

struct HostNeed {
  std::int64_t bytes = 0;
  c10::Device device = c10::kCPU;  // from which values come, if not from host memory alone
};

HostNeed needed_for(const std::vector<StateTensor>& tensors) {
  HostNeed need;
  for (const StateTensor& tensor : tensors)
    for (const StatePiece& piece : tensor.pieces) {
      need.bytes += room(piece.values);
      if (!piece.values.device().is_cpu()) need.device = piece.values.device();
    }
  return need;
}

// Pages of the system, of which pieces are page-locked one after the other.
class LockedPages {
 public:
  explicit LockedPages(std::int64_t bytes) : bytes_(round_up(bytes, kPieceBytes)) {
    void* const mapped =
        mmap(nullptr, size(bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require<ResourceError>(mapped != MAP_FAILED, "there are no ", format_bytes(bytes_),
                           " of host memory for a save beside the training: ", std::strerror(errno),
                           "; checkpoint.async=false needs none");
    pages_ = static_cast<char*>(mapped);
    madvise(pages_, size(bytes_), MADV_HUGEPAGE);  // fewer pages to find and to lock; no must
  }
  ~LockedPages() {
    for (std::int64_t at = 0; at < locked_; at += kPieceBytes) kernels::page_unlock(pages_ + at);
    munmap(pages_, size(bytes_));
  }
  LockedPages(const LockedPages&) = delete;
  LockedPages& operator=(const LockedPages&) = delete;

  char* data() const { return pages_; }

  void lock() {
    bool locks = true;
    for (std::int64_t at = 0; at < bytes_; at += kPieceBytes) {
      std::memset(pages_ + at, 0, size(kPieceBytes));
      locks = locks && kernels::page_lock(pages_ + at, size(kPieceBytes));
      if (locks) locked_ = at + kPieceBytes;
    }
    if (!locks)
      log::debug("of ", format_bytes(bytes_), " of memory for saves ",
                 format_bytes(bytes_ - locked_), " cannot be page-locked: copies take longer");
  }

 private:
  static std::size_t size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }

  std::int64_t bytes_, locked_ = 0;
  char* pages_ = nullptr;
};

at::Tensor host_memory(std::int64_t bytes, c10::Device device) {
  const at::TensorOptions bytes_only = at::TensorOptions().dtype(at::kByte);
  if (device.is_cpu()) return at::empty({bytes}, bytes_only);
  const c10::DeviceGuard on_device(device);
  const auto pages = std::make_shared<LockedPages>(bytes);
  pages->lock();
  return at::from_blob(
      pages->data(), {bytes}, [pages](void*) {}, bytes_only);
}

// To the place in `memory`, behind what computes the values.
void copy_to(const at::Tensor& memory, std::int64_t place, const at::Tensor& values) {
  const at::Tensor bytes = values.contiguous().view({-1}).view(at::kByte);
  for (std::int64_t done = 0; done < bytes.numel();) {
    const std::int64_t to_end = kPieceBytes - (place + done) % kPieceBytes,
                       count = std::min(bytes.numel() - done, to_end);
    memory.narrow(0, place + done, count)
        .copy_(bytes.narrow(0, done, count), /*non_blocking=*/true);
    done += count;
  }
}

}  // namespace

void HostCopy::prepare(const std::vector<StateTensor>& tensors) {
  settle();
  const auto [bytes, device] = needed_for(tensors);
  if (bytes == 0 || (buffer_.defined() && buffer_.numel() >= bytes)) return;
  log::debug("makes ", format_bytes(bytes), " of host memory for saves beside the training");
  buffer_.reset();  // the old one goes before the new one comes
  making_bytes_ = bytes;
  // A failure is no loss: the save tries it again, and says so if it fails.
  const auto unless_it_fails = [](const auto& make) {
    try {
      make();
    } catch (const std::exception& e) {
      log::debug("memory for saves could not be prepared: ", e.what());
    }
  };
  unless_it_fails([&, bytes = bytes, device = device] {
    // Without page-locking it is the pages that take long, and the memory counts from now on.
    if (device.is_cpu()) made_ = host_memory(bytes, device);
    maker_ = std::thread(unless_it_fails, [this, bytes, device] {
      if (device.is_cpu())
        std::memset(made_.mutable_data_ptr(), 0, made_.nbytes());
      else
        made_ = host_memory(bytes, device);
    });
  });
}

void HostCopy::settle() noexcept {
  if (!maker_.joinable()) return;
  maker_.join();
  if (made_.defined()) buffer_ = std::move(made_);
  made_ = at::Tensor();
}

std::vector<StateTensor> HostCopy::of(std::vector<StateTensor> tensors) {
  const at::AutoGradMode grad_off(false);
  settle();
  const auto [bytes, device] = needed_for(tensors);
  if (!buffer_.defined() || buffer_.numel() < bytes) {
    buffer_.reset();  // the old one goes before the new one comes
    buffer_ = host_memory(bytes, device);
  }
  std::int64_t place = 0;
  for (StateTensor& tensor : tensors)
    for (StatePiece& piece : tensor.pieces) {
      const at::Tensor values = piece.values;
      copy_to(buffer_, place, values);
      piece.values = buffer_.narrow(0, place, static_cast<std::int64_t>(values.nbytes()))
                         .view(values.scalar_type())
                         .view(values.sizes());
      place += room(values);
    }
  if (!device.is_cpu()) {
    const c10::impl::VirtualGuardImpl accelerator(device.type());
    accelerator.synchronizeStream(accelerator.getStream(device));
  }
  return tensors;
}

std::int64_t HostCopy::bytes() const {
  if (maker_.joinable()) return making_bytes_;
  return buffer_.defined() ? static_cast<std::int64_t>(buffer_.nbytes()) : 0;
}

}  // namespace floe::checkpoint
