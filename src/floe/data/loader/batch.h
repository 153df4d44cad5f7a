// What the loader gives: one batch of every source, its pictures in one buffer. Torch-free;
// packing/packing.h makes tensors of it without copying the pictures.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "floe/data/stream/stream_batches.h"
#include "floe/image/transform.h"

namespace floe::data {

// Memory for pictures [num_images, 3, height, width].
class ImageMemory {
 public:
  virtual ~ImageMemory() = default;
  virtual float* data() = 0;
};
struct ImageShape {
  std::int64_t num_images = 0, height = 0, width = 0;
  std::int64_t numel_each() const { return 3 * height * width; }
  std::int64_t numel() const { return num_images * numel_each(); }
};
// Called by one thread at a time. The memory need not be zero.
using AllocateImages = std::function<std::shared_ptr<ImageMemory>(const ImageShape&)>;
// Ordinary memory. What is not used any more is given again: fresh pages would cost as much as
// filling them. Memory may be given back by any thread, also after the function is gone.
AllocateImages images_on_heap();

// Sequences of one source, one after the other without padding (batch/packed_batch.h).
struct SourceBatch {
  std::int64_t source = 0;                           // its number, see sources/source.h
  std::vector<std::int64_t> ids, labels, positions;  // [N]
  std::vector<std::int64_t> sequence_offsets{0};     // [S+1]
  std::vector<std::int64_t> image_offsets{0};        // [S+1], from 0 in this batch
  std::vector<std::string> keys;                     // [S]
  std::int64_t first_image = 0;                      // in the pictures of the batch
  std::int64_t image_slots = 0;  // of each sequence, see Note [Image slots] in batch/packed_batch.h

  std::int64_t num_sequences() const { return static_cast<std::int64_t>(keys.size()); }
  std::int64_t num_images() const { return image_offsets.back(); }
  // Ids and labels are containers of integers.
  template <class Ids, class Labels>
  void add_sequence(const Ids& new_ids, const Labels& new_labels, std::int64_t num_images,
                    std::string key) {
    ids.insert(ids.end(), new_ids.begin(), new_ids.end());
    labels.insert(labels.end(), new_labels.begin(), new_labels.end());
    for (std::size_t i = 0; i < new_ids.size(); ++i)
      positions.push_back(static_cast<std::int64_t>(i));
    sequence_offsets.push_back(static_cast<std::int64_t>(ids.size()));
    image_offsets.push_back(image_offsets.back() + num_images);
    keys.push_back(std::move(key));
  }
};

// What one training step (or one of its accumulated parts) reads.
struct Batch {
  std::int64_t epoch = 0;
  std::int64_t index = 0;   // in the epoch, from 0
  bool ends_epoch = false;  // it is the last one
  std::vector<SourceBatch> sources;
  ImageShape shape;
  std::shared_ptr<ImageMemory> images;  // null without pictures
};

// A picture that is not in the memory of its batch yet: a crop that is normalised on the way, or
// values as they are.
struct PendingImage {
  const std::uint8_t* crop = nullptr;  // [size, size, 3]
  bool flip = false;                   // left to right
  const float* values = nullptr;       // [3, height, width], where there is no crop
};

// Sequences of one source whose pictures are not in the memory of their batch yet.
struct PendingBatch {
  SourceBatch sequences;
  ImageShape shape;  // empty without pictures
  std::vector<PendingImage> images;
  std::shared_ptr<const void> owner;  // of what `images` point to
  // What it holds until its pictures are written, and whose it is: for BatchSource::written().
  std::size_t worker = 0;
  std::int64_t num_samples = 0, num_bytes = 0;
};

// Samples as sequences and pictures of `size`.
PendingBatch pending_batch(std::int64_t source, std::int64_t image_slots, SampleBatch samples,
                           int size);
// One picture of it to `out`, [3, height, width]. Any thread.
void write_image(const PendingBatch& batch, std::int64_t image, const image::Transform& transform,
                 float* out);

}  // namespace floe::data
