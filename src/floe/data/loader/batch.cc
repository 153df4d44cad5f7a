#include "floe/data/loader/batch.h"

#include <cstring>
#include <mutex>
#include <utility>

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

AllocateImages images_on_heap() {
  return [pool = std::make_shared<BufferPool>()](const ImageShape& shape) {
    return std::make_shared<HeapImages>(pool, shape.numel());
  };
}

PendingBatch pending_batch(std::int64_t source, std::int64_t image_slots, SampleBatch samples,
                           int size) {
  PendingBatch pending;
  pending.sequences.source = source;
  pending.sequences.image_slots = image_slots;
  pending.num_samples = static_cast<std::int64_t>(samples.samples.size());
  pending.num_bytes = samples.bytes;
  const auto held = std::make_shared<const SampleBatch>(std::move(samples));
  for (std::size_t i = 0; i < held->samples.size(); ++i) {
    const Sample& sample = held->samples[i];
    for (std::size_t k = 0; k < sample.num_images(); ++k)
      pending.images.push_back({.crop = sample.crop(k).data(), .flip = held->flips[i] != 0});
    pending.sequences.add_sequence(sample.ids, sample.labels,
                                   static_cast<std::int64_t>(sample.num_images()), sample.key);
  }
  if (!pending.images.empty())
    pending.shape = {static_cast<std::int64_t>(pending.images.size()), size, size};
  pending.owner = held;
  return pending;
}

void write_image(const PendingBatch& batch, std::int64_t image, const image::Transform& transform,
                 float* out) {
  const PendingImage& from = batch.images[static_cast<std::size_t>(image)];
  if (from.crop)
    transform.normalise(from.crop, out, from.flip);
  else
    std::memcpy(out, from.values,
                static_cast<std::size_t>(batch.shape.numel_each()) * sizeof(float));
}

}  // namespace floe::data
