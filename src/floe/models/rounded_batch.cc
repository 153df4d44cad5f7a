#include "floe/models/rounded_batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "floe/batch/bucket_size.h"

namespace floe::models {
namespace {

struct Padding {
  std::int64_t sequences = 1, tokens = 0, images = 0;
};

std::int64_t longest_sequence(const PackedBatch& batch) {
  return batch.num_sequences() == 0 ? 0 : batch.sequence_offsets.diff().max().item<std::int64_t>();
}

Padding padding_for(const PackedBatch& batch, bool with_images) {
  Padding padding;
  std::int64_t for_images = 0;  // tokens, one for each image of padding
  if (with_images) {
    const std::int64_t images = bucket_size(batch.num_images());
    padding.images = images - batch.num_images();
    for_images = bucket_step(images);
  }
  const std::int64_t tokens = bucket_size(batch.num_tokens() + for_images);
  padding.tokens = tokens - batch.num_tokens();
  // However much is missing, no sequence of padding is longer than the longest one counts.
  const std::int64_t longest = std::max<std::int64_t>(bucket_size(longest_sequence(batch)), 1);
  padding.sequences = (bucket_step(tokens) + for_images + longest - 1) / longest;
  return padding;
}

}  // namespace

PackedBatch rounded(const PackedBatch& batch, std::int64_t media_token) {
  const bool with_images = media_token >= 0;
  const Padding padding = padding_for(batch, with_images);
  std::vector<std::int64_t> ids, lengths, images;
  const std::int64_t text = media_token == 0 ? 1 : 0;
  std::int64_t tokens_left = padding.tokens, images_left = padding.images;
  for (std::int64_t left = padding.sequences; left > 0; --left) {
    const std::int64_t tokens = tokens_left / left, own = std::min(images_left, tokens);
    for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(i < own ? media_token : text);
    lengths.push_back(tokens);
    images.push_back(own);
    tokens_left -= tokens;
    images_left -= own;
  }
  const auto longs = [](const std::vector<std::int64_t>& v) { return at::tensor(v, at::kLong); };
  const auto counted_on = [&](const at::Tensor& offsets, const std::vector<std::int64_t>& sizes) {
    return at::cat({offsets, longs(sizes).cumsum(0) + offsets[-1]});
  };
  PackedBatch result = batch;
  result.ids = at::cat({batch.ids, longs(ids)});
  result.positions = at::cat({batch.positions, at::zeros({padding.tokens}, at::kLong)});
  result.labels = at::cat({batch.labels, at::full({padding.tokens}, kNoLabel, at::kLong)});
  result.source = at::cat({batch.source, at::zeros({padding.sequences}, at::kLong)});
  result.sequence_offsets = counted_on(batch.sequence_offsets, lengths);
  result.image_offsets = counted_on(batch.image_offsets, images);
  if (batch.image_slots.defined()) result.image_slots = at::cat({batch.image_slots, longs(images)});
  if (batch.attended.defined())
    result.attended = at::cat({batch.attended, at::ones({padding.tokens}, at::kBool)});
  result.sample_keys.insert(result.sample_keys.end(), static_cast<std::size_t>(padding.sequences),
                            "padding");
  return result;
}

}  // namespace floe::models
