// Which images each token looks at, worked out once per batch.
//
// Note [Media time]
// A token's time is the number of `<image>` tokens of its sequence up to and including itself. With
// `only_immediate` it looks at the image of that number (from 1), and at nothing before the first
// one. Without, it looks at all images up to that number. Where the rule leaves it none although the
// sequence has slots (a time beyond them; time 0 without `only_immediate`), its attention is spread
// evenly over all slots: in the reference, masked scores are the lowest finite number, and a softmax
// over equal numbers is even. Here such a token gets a query of zeros, which scores all slots alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "floe/batch/packed_batch.h"
#include "floe/nn/attention.h"
#include "floe/nn/segments.h"

namespace floe::models {

class MediaPlan {
 public:
  struct Bucket {
    std::int64_t slots = 1;  // per row
    at::Tensor images;       // [rows * slots] which encoded image each slot holds
    at::Tensor sees;         // [rows, 1, length, slots] bool; undefined: everything
    at::Tensor blind;        // [rows, length, 1] bool, sees nothing at all; undefined: none
    at::Tensor even;         // [rows, length, 1] bool, sees all slots alike; undefined: none
  };

  // For kernels without padding, where every token looks at one image or none: tokens in spans that
  // look at the same image.
  struct Packed {
    nn::Spans tokens;
    at::Tensor image_offsets;  // [spans + 1] int32: how many images are looked at before each span
    at::Tensor images;         // which ones, in this order; undefined: all, as they are
  };

  // `batch` on the CPU. `times` [N] overrides what the ids say (generation goes on without the ids of
  // the prompt); undefined: from the ids.
  MediaPlan(const PackedBatch& batch, std::shared_ptr<const nn::Segments> segments,
            const at::Tensor& times, bool only_immediate, at::Device device);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  const nn::Segments& segments() const { return *segments_; }
  // Null on the CPU and where some token looks at more than one image.
  const Packed* packed() const { return packed_ ? &*packed_ : nullptr; }
  // Whether a zero image stands behind the batch's own images.
  bool needs_zero_image() const { return needs_zero_image_; }

 private:
  std::shared_ptr<const nn::Segments> segments_;
  // From the image that each token looks at, -1 for none.
  void pack(const std::vector<std::int64_t>& image_of_token, std::int64_t num_images,
            at::Device device);

  std::vector<Bucket> buckets_;
  std::optional<Packed> packed_;
  bool needs_zero_image_ = false;
};

// Number of `media_token` up to and including each token, sequence by sequence: [N] int64 on the CPU.
at::Tensor media_times(const PackedBatch& batch, std::int64_t media_token);

}  // namespace floe::models
