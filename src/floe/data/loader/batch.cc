#include "floe/data/loader/loader_batch.h"

#include <mutex>
#include <utility>

#include "floe/core/error.h"

namespace floe::data {
namespace {

struct Buffer {
  std::unique_ptr<float[]> floats;  // left as it comes: every float is written
  std::int64_t numel = 0;
};

// Buffers that nobody uses.
class BufferPool {
 public:
  Buffer take(std::int64_t numel) {
    {
      const std::lock_guard lock(mutex_);
      for (Buffer& buffer : free_)
        if (buffer.numel >= numel) {
          std::swap(buffer, free_.back());
          Buffer taken = std::move(free_.back());
          free_.pop_back();
          return taken;
        }
    }
    // Steps differ in their number of pictures; a little more room fits most of them.
    const std::int64_t room = numel + numel / 8;
    return {std::unique_ptr<float[]>(new float[static_cast<std::size_t>(room)]), room};
  }
  void give_back(Buffer buffer) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
    if (free_.size() > kMostFree) free_.erase(free_.begin());
  }

 private:
  static constexpr std::size_t kMostFree = 4;
  std::mutex mutex_;
  std::vector<Buffer> free_;
};

class HeapImages : public ImageMemory {
 public:
  HeapImages(std::shared_ptr<BufferPool> pool, std::int64_t numel)
      : pool_(std::move(pool)), buffer_(pool_->take(numel)) {}
  ~HeapImages() override { pool_->give_back(std::move(buffer_)); }
  float* data() override { return buffer_.floats.get(); }

 private:
  std::shared_ptr<BufferPool> pool_;
  Buffer buffer_;
};

}  // namespace

const char* name_of(SourceId source) {
  switch (source) {
    case SourceId::laion: return "laion";
    case SourceId::mmc4: return "mmc4";
    case SourceId::text: return "text";
  }
  throw Error("there is no such source");
}

AllocateImages images_on_heap() {
  return [pool = std::make_shared<BufferPool>()](const ImageShape& shape) {
    return std::make_shared<HeapImages>(pool, shape.numel());
  };
}

}  // namespace floe::data
