// The one form in which data reaches a model: sequences laid one after the other, without padding.
//
// Sequence s has the tokens [sequence_offsets[s], sequence_offsets[s + 1]) and the images
// [image_offsets[s], image_offsets[s + 1]), in the order in which its text refers to them.
//
// Note [Image slots]
// OpenFlamingo pads the images of a row with zeros up to a fixed number. Text can look at such a
// zero image where the rules let it: behind a literal `<image>` in a page, or wherever attention
// has to be spread over everything. `image_slots` says how many places a sequence has in that
// padded form, at least its number of images; the model then encodes one zero image when some text
// really looks at it.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "floe/core/label.h"

namespace floe {

// Sizes rounded up, so that batches of nearly the same size have the same shape: in steps of an
// eighth of the power of two below, so at most an eighth more, and 16 at least.
constexpr std::int64_t bucket_step(std::int64_t size) {
  return std::max<std::int64_t>(
      16, static_cast<std::int64_t>(
              std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1))) / 8));
}
constexpr std::int64_t bucket_size(std::int64_t size) {
  const std::int64_t step = bucket_step(size);
  return (size + step - 1) / step * step;
}

struct PackedBatch {
  at::Tensor ids;               // [N] int64
  at::Tensor sequence_offsets;  // [S+1] int64, from 0 to N, never falling
  at::Tensor positions;         // [N] int64, of each token in its sequence
  at::Tensor labels;            // [N] int64, kNoLabel = none
  at::Tensor source;            // [S] int64, which data set a sequence is from
  at::Tensor images;            // [M, 3, H, W] floating point
  at::Tensor image_offsets;     // [S+1] int64, from 0 to M, never falling
  at::Tensor image_slots;       // [S] int64, see Note [Image slots]; undefined: no empty ones
  at::Tensor attended;  // [N] bool, false: padding, which no token looks at; undefined: none
  std::vector<std::string> sample_keys;  // one per sequence, for messages and resume

  std::int64_t num_tokens() const;     // N
  std::int64_t num_sequences() const;  // S
  std::int64_t num_images() const;     // M
  // Tokens that have a label. Waits for the device when the labels are on one.
  std::int64_t num_labels() const;

  // Throws DataError that names the field that does not fit. Looks at values, so it waits for the
  // device: call it where batches are made, on the CPU.
  void validate() const;

  // A copy with every tensor on that device; tensors that are there already are shared. With
  // non_blocking, copies from pinned memory may still be under way when it returns.
  PackedBatch to(const at::Device& device, bool non_blocking = false) const;
};

// A copy on the device of what lies on the CPU; for the CPU, the tensor itself. The host does
// not wait: the copy is ordered on the current stream and goes through pinned memory of
// torch's own cache.
at::Tensor to_device(const at::Tensor& tensor, const at::Device& device);

}  // namespace floe
