// Which images each token looks at, worked out once per batch.
//
// Note [Media time]
// A token's time is the number of `<image>` tokens of its sequence up to and including itself. With
// `only_immediate` it looks at the image of that number (from 1), and at nothing before the first
// one. Without, it looks at all images up to that number. Where the rule leaves it none although
// the sequence has slots (a time beyond them; time 0 without `only_immediate`), its attention is
// spread evenly over all slots: in the reference, masked scores are the lowest finite number, and a
// softmax over equal numbers is even. Here such a token gets a query of zeros, which scores all
// slots alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "floe/batch/packed_batch.h"
#include "floe/nn/attention.h"
#include "floe/nn/segments.h"

namespace floe::models {

// Keys and values of encoded images, of each layer that has made some: in generation they are the
// same for every token.
class MediaCache {
 public:
  // Undefined until the layer has set it.
  at::Tensor& of(const void* layer) { return made_[layer]; }

 private:
  std::unordered_map<const void*, at::Tensor> made_;
};

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

  struct Rule {
    bool only_immediate = true;
    // The number of spans and the longest of them are as large as they can be, so that they follow
    // from the batch's size.
    bool rounded = false;
    // [S] on the CPU, which image is a sequence's first, so that sequences may share theirs;
    // undefined: that of the batch's offsets, which say how many it has.
    at::Tensor first_images;
    MediaCache* cache = nullptr;  // null: nothing is kept
  };
  // `batch` and `times` [N] on the CPU. Images are counted by the batch's offsets.
  MediaPlan(const PackedBatch& batch, std::shared_ptr<const nn::Segments> segments,
            const at::Tensor& times, const Rule& rule, at::Device device);

  // For attention with padding: made when it is first asked for.
  const std::vector<Bucket>& buckets() const;
  const nn::Segments& segments() const { return *segments_; }
  MediaCache* cache() const { return rule_.cache; }
  // Null on the CPU and where some token looks at more than one image.
  const Packed* packed() const { return packed_ ? &*packed_ : nullptr; }
  // Whether a zero image stands behind the batch's own images.
  bool needs_zero_image() const { return needs_zero_image_; }

  // Without those of the segments; with buckets if they have been made.
  void add_parts(nn::BatchParts& parts) const;
  void make_buckets() const { buckets(); }

 private:
  // What the text of one sequence can look at.
  struct Page {
    std::int64_t first_token = 0, tokens = 0;
    std::int64_t first_image = 0, images = 0, slots = 0;
  };
  enum class Sight { nothing, rule, everything };

  Sight sight_of(const Page& page, std::int64_t time) const;
  bool sees(const Page& page, std::int64_t time, std::int64_t slot) const;
  // Behind what a token of that time sees of the page, is there a slot without an image?
  bool sees_zero_image(const Page& page, std::int64_t time) const;
  std::vector<Bucket> lay_out() const;
  // From the image that each token looks at, -1 for none.
  void pack(const std::vector<std::int64_t>& image_of_token);

  std::shared_ptr<const nn::Segments> segments_;
  at::Tensor times_;
  Rule rule_;
  at::Device device_;
  std::vector<Page> pages_;
  std::int64_t zero_image_ = 0;  // where one would stand
  bool needs_zero_image_ = false;
  std::optional<Packed> packed_;
  mutable std::optional<std::vector<Bucket>> buckets_;
};

// Number of `media_token` up to and including each token, sequence by sequence: [N] int64 on the
// CPU.
at::Tensor media_times(const PackedBatch& batch, std::int64_t media_token);

}  // namespace floe::models
