#include "floe/shard/group/pool.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/core/log.h"

namespace floe::shard {
namespace {

std::int64_t size_of(const at::Tensor& buffer) { return buffer.numel(); }

}  // namespace

BufferPool::BufferPool(std::string name, c10::Device device, std::int64_t capacity_bytes)
    : name_(std::move(name)), device_(device), capacity_bytes_(capacity_bytes) {}

bool BufferPool::has_room(std::int64_t bytes) const {
  return used_bytes_ + bytes <= capacity_bytes_;
}

at::Tensor BufferPool::take(std::int64_t bytes) {
  const auto same = std::find_if(free_.begin(), free_.end(),
                                 [&](const at::Tensor& free) { return size_of(free) == bytes; });
  at::Tensor buffer;
  if (same != free_.end()) {
    buffer = std::move(*same);
    free_.erase(same);
  } else {
    make_room(bytes);
    buffer = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
    held_bytes_ += bytes;
  }
  used_bytes_ += size_of(buffer);
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
  if (used_bytes_ > capacity_bytes_ && !std::exchange(said_overflow_, true))
    log::debug("the ", name_, " pool grows to ", format_bytes(used_bytes_), " beyond its ",
               format_bytes(capacity_bytes_), ": more has to be whole at once than planned");
  return buffer;
}

void BufferPool::give_back(at::Tensor buffer, bool keep) {
  used_bytes_ -= size_of(buffer);
  if (!keep)  // then nobody waits for the free ones of that size either
    std::erase_if(free_, [&](const at::Tensor& other) {
      if (size_of(other) != size_of(buffer)) return false;
      held_bytes_ -= size_of(other);
      return true;
    });
  if (!keep || held_bytes_ > capacity_bytes_) {
    held_bytes_ -= size_of(buffer);
    return;
  }
  free_.push_back(std::move(buffer));
}

void BufferPool::make_room(std::int64_t bytes) {
  while (!free_.empty() && held_bytes_ + bytes > capacity_bytes_) {
    held_bytes_ -= size_of(free_.front());
    free_.erase(free_.begin());
  }
}

void BufferPool::trim() {
  for (const auto& buffer : free_) held_bytes_ -= size_of(buffer);
  free_.clear();
}

}  // namespace floe::shard
