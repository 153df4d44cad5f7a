#include "floe/packing/packing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "floe/core/error.h"

namespace floe::data {
namespace {

class TensorImages : public ImageMemory {
 public:
  explicit TensorImages(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  float* data() override { return tensor_.mutable_data_ptr<float>(); }
  const at::Tensor& tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;
};

// The pictures of a step, [M, 3, H, W], where they are.
at::Tensor images_of(const Step& step) {
  const ImageShape& shape = step.shape;
  const std::array<std::int64_t, 4> sizes{shape.num_images, 3, shape.height, shape.width};
  if (!step.images) return at::empty({0, 3, 0, 0}, at::kFloat);
  if (const auto* tensor = dynamic_cast<const TensorImages*>(step.images.get()))
    return tensor->tensor().view(sizes);
  return at::from_blob(
      step.images->data(), sizes, [keep = step.images](void*) {}, at::TensorOptions(at::kFloat));
}

at::Tensor tensor_of(const std::vector<std::int64_t>& numbers) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  if (!numbers.empty())
    std::memcpy(tensor.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(std::int64_t));
  return tensor;
}

PackedBatch pack(std::span<const Batch> batches, at::Tensor images) {
  std::vector<std::int64_t> ids, positions, labels, source, slots, sequences{0}, pictures{0};
  PackedBatch packed;
  for (const Batch& batch : batches) {
    const std::int64_t first_token = sequences.back(), first_image = pictures.back();
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
    positions.insert(positions.end(), batch.positions.begin(), batch.positions.end());
    labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
    for (std::size_t s = 1; s < batch.sequence_offsets.size(); ++s) {
      sequences.push_back(first_token + batch.sequence_offsets[s]);
      pictures.push_back(first_image + batch.image_offsets[s]);
      source.push_back(static_cast<std::int64_t>(batch.source));
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

AllocateImages pinned_images() {
  return [](const ImageShape& shape) {
    return std::make_shared<TensorImages>(
        at::empty({shape.numel()}, at::TensorOptions(at::kFloat).pinned_memory(true)));
  };
}

PackedBatch pack(const Step& step) { return pack(step.batches, images_of(step)); }

PackedBatch pack(const Step& step, std::size_t batch) {
  require(batch < step.batches.size(), "the step has ", step.batches.size(),
          " batches, so there is no number ", batch);
  const Batch& one = step.batches[batch];
  return pack(std::span(&one, 1), images_of(step).narrow(0, one.first_image, one.num_images()));
}

}  // namespace floe::data
