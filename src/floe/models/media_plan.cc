#include "floe/models/media_plan.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "floe/batch/to_device.h"

namespace floe::models {
at::Tensor media_times(const PackedBatch& batch, std::int64_t media_token) {
  at::Tensor times = at::empty_like(batch.ids);
  const auto* ids = batch.ids.const_data_ptr<std::int64_t>();
  const auto* offsets = batch.sequence_offsets.const_data_ptr<std::int64_t>();
  auto* time = times.mutable_data_ptr<std::int64_t>();
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s)
    for (std::int64_t i = offsets[s], count = 0; i < offsets[s + 1]; ++i)
      time[i] = count += ids[i] == media_token;
  return times;
}

MediaPlan::MediaPlan(const PackedBatch& batch, std::shared_ptr<const nn::Segments> segments,
                     const at::Tensor& times, bool only_immediate, at::Device device)
    : segments_(std::move(segments)) {
  const auto* offsets = batch.sequence_offsets.const_data_ptr<std::int64_t>();
  const auto* images = batch.image_offsets.const_data_ptr<std::int64_t>();
  const auto* time_of = times.const_data_ptr<std::int64_t>();
  const std::int64_t zero_image = batch.num_images();
  const auto images_of = [&](std::int64_t s) { return images[s + 1] - images[s]; };
  const auto slots_of = [&](std::int64_t s) {
    if (!batch.image_slots.defined()) return images_of(s);
    return batch.image_slots.const_data_ptr<std::int64_t>()[s];
  };

  std::vector<std::int64_t> image_of_token(static_cast<std::size_t>(batch.num_tokens()), -1);
  bool one_each = only_immediate && !device.is_cpu();
  for (const nn::Bucket& rows : segments_->buckets()) {
    Bucket bucket;
    for (const std::int64_t s : rows.sequences) bucket.slots = std::max(bucket.slots, slots_of(s));
    at::Tensor index = at::full({rows.rows * bucket.slots}, zero_image, at::kLong);
    at::Tensor sees = at::ones({rows.rows, 1, rows.length, bucket.slots}, at::kBool);
    at::Tensor blind = at::zeros({rows.rows, rows.length, 1}, at::kBool);
    at::Tensor even = at::zeros_like(blind);
    bool any_hidden = false, any_blind = false, any_even = false;
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      const std::int64_t s = rows.sequences[static_cast<std::size_t>(row)];
      const std::int64_t own = images_of(s), slots = slots_of(s);
      auto* image = index.mutable_data_ptr<std::int64_t>() + row * bucket.slots;
      for (std::int64_t i = 0; i < own; ++i) image[i] = images[s] + i;
      for (std::int64_t i = 0; i < offsets[s + 1] - offsets[s]; ++i) {
        const std::int64_t place = row * rows.length + i, time = time_of[offsets[s] + i];
        if (slots == 0 || (only_immediate && time == 0)) {
          blind.mutable_data_ptr<bool>()[place] = any_blind = true;
          continue;
        }
        const bool all_alike = only_immediate ? time > slots : time == 0;
        one_each = one_each && !all_alike;
        if (all_alike) even.mutable_data_ptr<bool>()[place] = any_even = true;
        for (std::int64_t slot = 0; slot < bucket.slots; ++slot) {
          const bool in_rule = only_immediate ? slot + 1 == time : slot + 1 <= time;
          const bool seen = slot < slots && (all_alike || in_rule);
          if (seen)
            image_of_token[static_cast<std::size_t>(offsets[s] + i)] =
                slot < own ? images[s] + slot : zero_image;
          sees.mutable_data_ptr<bool>()[place * bucket.slots + slot] = seen;
          any_hidden = any_hidden || !seen;
          needs_zero_image_ = needs_zero_image_ || (seen && slot >= own);
        }
      }
    }
    // Slots that nobody looks at still need some image behind them.
    bucket.images = index;
    if (any_hidden) bucket.sees = to_device(sees, device);
    if (any_blind) bucket.blind = to_device(blind, device);
    if (any_even) bucket.even = to_device(even, device);
    buckets_.push_back(std::move(bucket));
  }
  needs_zero_image_ = needs_zero_image_ || zero_image == 0;
  for (Bucket& bucket : buckets_) {
    if (!needs_zero_image_) bucket.images.masked_fill_(bucket.images.eq(zero_image), 0);
    bucket.images = to_device(bucket.images, device);
  }
  if (one_each) pack(image_of_token, zero_image + (needs_zero_image_ ? 1 : 0), device);
}

void MediaPlan::pack(const std::vector<std::int64_t>& image_of_token, std::int64_t num_images,
                     at::Device device) {
  std::vector<int> tokens{0}, images_before{0};
  std::vector<std::int64_t> images;
  std::int64_t longest = 0;
  for (std::size_t first = 0, end = 0; first < image_of_token.size(); first = end) {
    const std::int64_t image = image_of_token[first];
    for (end = first + 1; end < image_of_token.size() && image_of_token[end] == image;) ++end;
    if (image >= 0) images.push_back(image);
    tokens.push_back(static_cast<int>(end));
    images_before.push_back(static_cast<int>(images.size()));
    longest = std::max(longest, static_cast<std::int64_t>(end - first));
  }
  if (images.empty()) return;
  bool as_they_are = static_cast<std::int64_t>(images.size()) == num_images;
  for (std::size_t i = 0; i < images.size(); ++i)
    as_they_are = as_they_are && images[i] == static_cast<std::int64_t>(i);
  packed_.emplace();
  packed_->tokens = {to_device(at::tensor(tokens, at::kInt), device), longest};
  packed_->image_offsets = to_device(at::tensor(images_before, at::kInt), device);
  if (!as_they_are) packed_->images = to_device(at::tensor(images, at::kLong), device);
}

}  // namespace floe::models
