#include "floe/models/flamingo/media_plan.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "floe/batch/packed_batch.h"
#include "floe/kernels/rehearsal.h"

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
                     const at::Tensor& times, const Rule& rule, at::Device device)
    : segments_(std::move(segments)), times_(times), rule_(rule), device_(device) {
  const auto* offsets = batch.sequence_offsets.const_data_ptr<std::int64_t>();
  const auto* images = batch.image_offsets.const_data_ptr<std::int64_t>();
  const auto* slots =
      batch.image_slots.defined() ? batch.image_slots.const_data_ptr<std::int64_t>() : nullptr;
  const auto* time_of = times_.const_data_ptr<std::int64_t>();
  const auto* first_images =
      rule.first_images.defined() ? rule.first_images.const_data_ptr<std::int64_t>() : nullptr;
  zero_image_ = first_images ? batch.num_images() : images[batch.num_sequences()];
  needs_zero_image_ = zero_image_ == 0;

  std::vector<std::int64_t> image_of_token(static_cast<std::size_t>(batch.num_tokens()), -1);
  bool one_each = rule_.only_immediate && !kernels::acts_as_cpu(device);
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const std::int64_t own = images[s + 1] - images[s];
    const Page page{offsets[s], offsets[s + 1] - offsets[s],
                    first_images ? first_images[s] : images[s], own, slots ? slots[s] : own};
    for (std::int64_t t = page.first_token; t < page.first_token + page.tokens; ++t) {
      const Sight sight = sight_of(page, time_of[t]);
      if (sight == Sight::nothing) continue;
      needs_zero_image_ = needs_zero_image_ || sees_zero_image(page, time_of[t]);
      one_each = one_each && sight == Sight::rule;
      const std::int64_t slot = time_of[t] - 1;
      if (one_each)
        image_of_token[static_cast<std::size_t>(t)] =
            slot < own ? page.first_image + slot : zero_image_;
    }
    pages_.push_back(page);
  }
  if (one_each) pack(image_of_token);
}

MediaPlan::Sight MediaPlan::sight_of(const Page& page, std::int64_t time) const {
  if (page.slots == 0 || (rule_.only_immediate && time == 0)) return Sight::nothing;
  const bool all_alike = rule_.only_immediate ? time > page.slots : time == 0;
  return all_alike ? Sight::everything : Sight::rule;
}

bool MediaPlan::sees(const Page& page, std::int64_t time, std::int64_t slot) const {
  if (slot >= page.slots) return false;
  if (sight_of(page, time) == Sight::everything) return true;
  return rule_.only_immediate ? slot + 1 == time : slot + 1 <= time;
}

bool MediaPlan::sees_zero_image(const Page& page, std::int64_t time) const {
  const std::int64_t last =
      sight_of(page, time) == Sight::everything ? page.slots : std::min(time, page.slots);
  return last > page.images;
}

const std::vector<MediaPlan::Bucket>& MediaPlan::buckets() const {
  if (!buckets_) buckets_ = lay_out();
  return *buckets_;
}

std::vector<MediaPlan::Bucket> MediaPlan::lay_out() const {
  const auto* time_of = times_.const_data_ptr<std::int64_t>();
  std::vector<Bucket> buckets;
  for (const nn::Bucket& rows : segments_->buckets()) {
    const auto page_of = [&](std::int64_t row) -> const Page& {
      return pages_[static_cast<std::size_t>(rows.sequences[static_cast<std::size_t>(row)])];
    };
    Bucket bucket;
    for (std::int64_t row = 0; row < rows.rows; ++row)
      bucket.slots = std::max(bucket.slots, page_of(row).slots);
    // Slots that nobody looks at still need some image behind them.
    at::Tensor index =
        at::full({rows.rows * bucket.slots}, needs_zero_image_ ? zero_image_ : 0, at::kLong);
    at::Tensor sees = at::ones({rows.rows, 1, rows.length, bucket.slots}, at::kBool);
    at::Tensor blind = at::zeros({rows.rows, rows.length, 1}, at::kBool);
    at::Tensor even = at::zeros_like(blind);
    bool any_hidden = false, any_blind = false, any_even = false;
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      const Page& page = page_of(row);
      auto* image = index.mutable_data_ptr<std::int64_t>() + row * bucket.slots;
      for (std::int64_t i = 0; i < page.images; ++i) image[i] = page.first_image + i;
      for (std::int64_t i = 0; i < page.tokens; ++i) {
        const std::int64_t place = row * rows.length + i, time = time_of[page.first_token + i];
        const Sight sight = sight_of(page, time);
        if (sight == Sight::nothing) {
          blind.mutable_data_ptr<bool>()[place] = any_blind = true;
          continue;
        }
        if (sight == Sight::everything) even.mutable_data_ptr<bool>()[place] = any_even = true;
        for (std::int64_t slot = 0; slot < bucket.slots; ++slot) {
          const bool seen = this->sees(page, time, slot);
          sees.mutable_data_ptr<bool>()[place * bucket.slots + slot] = seen;
          any_hidden = any_hidden || !seen;
        }
      }
    }
    bucket.images = to_device(index, device_);
    if (any_hidden) bucket.sees = to_device(sees, device_);
    if (any_blind) bucket.blind = to_device(blind, device_);
    if (any_even) bucket.even = to_device(even, device_);
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

void MediaPlan::pack(const std::vector<std::int64_t>& image_of_token) {
  const std::int64_t num_images = zero_image_ + (needs_zero_image_ ? 1 : 0);
  std::vector<int> tokens{0}, images_before{0};
  std::vector<std::int64_t> images;
  std::int64_t longest = 0;
  // A span ends with its page, though the next one's tokens may look at nothing as well: so none is
  // longer than the longest sequence.
  for (const Page& page : pages_) {
    const auto page_end = static_cast<std::size_t>(page.first_token + page.tokens);
    for (auto first = static_cast<std::size_t>(page.first_token), end = first; first < page_end;
         first = end) {
      const std::int64_t image = image_of_token[first];
      for (end = first + 1; end < page_end && image_of_token[end] == image;) ++end;
      if (image >= 0) images.push_back(image);
      tokens.push_back(static_cast<int>(end));
      images_before.push_back(static_cast<int>(images.size()));
      longest = std::max(longest, static_cast<std::int64_t>(end - first));
    }
  }
  if (images.empty()) return;
  if (rule_.rounded) {
    // As many as there can be: one for each image, and for each page the text before its first
    // image and that behind its last. Those without a token look at nothing.
    const std::size_t spans = 2 * pages_.size() + static_cast<std::size_t>(zero_image_);
    tokens.resize(spans + 1, tokens.back());
    images_before.resize(spans + 1, images_before.back());
    longest = segments_->longest();
  }
  bool as_they_are = static_cast<std::int64_t>(images.size()) == num_images;
  for (std::size_t i = 0; i < images.size(); ++i)
    as_they_are = as_they_are && images[i] == static_cast<std::int64_t>(i);
  packed_.emplace();
  packed_->tokens = {to_device(at::tensor(tokens, at::kInt), device_), longest};
  packed_->image_offsets = to_device(at::tensor(images_before, at::kInt), device_);
  if (!as_they_are) packed_->images = to_device(at::tensor(images, at::kLong), device_);
}

void MediaPlan::add_parts(nn::BatchParts& parts) const {
  parts.add(packed_.has_value());
  if (packed_) {
    parts.add(packed_->tokens.longest);
    for (const at::Tensor& tensor :
         {packed_->tokens.offsets, packed_->image_offsets, packed_->images})
      parts.add(tensor);
  }
  parts.add(buckets_.has_value());
  if (!buckets_) return;
  for (const Bucket& bucket : *buckets_) {
    parts.add(bucket.slots);
    for (const at::Tensor& tensor : {bucket.images, bucket.sees, bucket.blind, bucket.even})
      parts.add(tensor);
  }
}

}  // namespace floe::models
