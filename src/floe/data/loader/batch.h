// What the loader gives: one batch of every source, its pictures in one buffer. Torch-free; packing.h
// makes tensors of it without copying the pictures.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace floe::data {

// Numbers of the data sets in PackedBatch::source; the same in every run.
enum class SourceId : std::int64_t { laion = 0, mmc4 = 1, text = 2 };
const char* name_of(SourceId source);

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
// Ordinary memory. What is not used any more is given again: fresh pages would cost as much as filling
// them. Memory may be given back by any thread, also after the function is gone.
AllocateImages images_on_heap();

// Sequences of one source, one after the other without padding (batch/packed_batch.h).
struct Batch {
  SourceId source = SourceId::laion;
  std::vector<std::int64_t> ids, labels, positions;  // [N]
  std::vector<std::int64_t> sequence_offsets{0};     // [S+1]
  std::vector<std::int64_t> image_offsets{0};        // [S+1], from 0 in this batch
  std::vector<std::string> keys;                     // [S]
  std::int64_t first_image = 0;                      // in the pictures of the step
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
struct Step {
  std::int64_t epoch = 0;
  std::int64_t index = 0;   // in the epoch, from 0
  bool ends_epoch = false;  // it is the last one
  std::vector<Batch> batches;
  ImageShape shape;
  std::shared_ptr<ImageMemory> images;  // null without pictures
};

}  // namespace floe::data
