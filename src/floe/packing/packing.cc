#include "floe/packing/packing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "floe/core/error.h"

namespace floe::packing {
namespace {

using data::Batch;
using data::ImageMemory;
using data::ImageShape;
using data::SourceBatch;

class TensorImages : public ImageMemory {
 public:
  explicit TensorImages(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  float* data() override { return tensor_.mutable_data_ptr<float>(); }
  const at::Tensor& tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;
};

// The pictures of a batch, [M, 3, H, W], where they are.
at::Tensor images_of(const Batch& batch) {
  const ImageShape& shape = batch.shape;
  const std::array<std::int64_t, 4> sizes{shape.num_images, 3, shape.height, shape.width};
  if (!batch.images) return at::empty({0, 3, 0, 0}, at::kFloat);
  if (const auto* tensor = dynamic_cast<const TensorImages*>(batch.images.get()))
    return tensor->tensor().view(sizes);
  return at::from_blob(
      batch.images->data(), sizes, [keep = batch.images](void*) {}, at::TensorOptions(at::kFloat));
}

at::Tensor tensor_of(const std::vector<std::int64_t>& numbers) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  if (!numbers.empty())
    std::memcpy(tensor.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(std::int64_t));
  return tensor;
}

PackedBatch pack(std::span<const SourceBatch> batches, at::Tensor images) {
  std::vector<std::int64_t> ids, positions, labels, source, slots, sequences{0}, pictures{0};
  PackedBatch packed;
  for (const SourceBatch& batch : batches) {
    const std::int64_t first_token = sequences.back(), first_image = pictures.back();
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
    positions.insert(positions.end(), batch.positions.begin(), batch.positions.end());
    labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
    for (std::size_t s = 1; s < batch.sequence_offsets.size(); ++s) {
      sequences.push_back(first_token + batch.sequence_offsets[s]);
      pictures.push_back(first_image + batch.image_offsets[s]);
      source.push_back(batch.source);
      slots.push_back(
          std::max(batch.image_slots, batch.image_offsets[s] - batch.image_offsets[s - 1]));
    }
    packed.sample_keys.insert(packed.sample_keys.end(), batch.keys.begin(), batch.keys.end());
  }
  packed.ids = tensor_of(ids);
  packed.sequence_offsets = tensor_of(sequences);
  packed.positions = tensor_of(positions);
  packed.labels = tensor_of(labels);
  packed.source = tensor_of(source);
  packed.images = std::move(images);
  packed.image_offsets = tensor_of(pictures);
  packed.image_slots = tensor_of(slots);
  return packed;
}

}  // namespace

data::AllocateImages pinned_images() {
  return [](const ImageShape& shape) {
    return std::make_shared<TensorImages>(
        at::empty({shape.numel()}, at::TensorOptions(at::kFloat).pinned_memory(true)));
  };
}

PackedBatch pack(const Batch& batch) { return pack(batch.sources, images_of(batch)); }

PackedBatch pack(const Batch& batch, std::size_t source) {
  require(source < batch.sources.size(), "the batch has ", batch.sources.size(),
          " sources, so there is no number ", source);
  const SourceBatch& one = batch.sources[source];
  return pack(std::span(&one, 1), images_of(batch).narrow(0, one.first_image, one.num_images()));
}

}  // namespace floe::packing
