// Packed sequences as attention works on them.
//
// Note [Buckets]
// Attention is the one operation that must keep sequences apart. For it, sequences of similar length
// are laid side by side in a bucket [rows, length], padded at the right. A causal token never looks
// behind itself, so padding at the right needs no mask and the fused kernels apply. All buckets lie
// one after the other in one buffer of places; `pad` and `unpad` go between tokens and places, each
// the other's gradient, without sums.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace floe::nn {

struct Bucket {
  std::int64_t first_place = 0;  // it has the places [first_place, first_place + rows * length)
  std::int64_t rows = 0, length = 0;
  std::vector<std::int64_t> sequences;  // which sequence lies in each row
  // Places that nobody may look at although a token lies there. Undefined: none.
  at::Tensor hidden;  // [rows, length] bool

  // The bucket's part of `places` [P, ...] as [rows, length, ...].
  at::Tensor of(const at::Tensor& places) const;
};

class Segments {
 public:
  Segments() = default;
  // From offsets [S+1] and, where some tokens are padding, `attended` [N] (else undefined). Both on
  // the CPU; the result works with tensors on `device`.
  Segments(const at::Tensor& offsets, const at::Tensor& attended, at::Device device);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_places() const { return num_places_; }

  // Where sequences begin, [S+1] int32 on the device, and the longest one: for kernels that take them
  // without padding. Undefined where some tokens are padding.
  const at::Tensor& offsets() const { return offsets_; }
  std::int64_t longest() const { return longest_; }
  // The buckets' parts of `places` [P, ...], each as Bucket::of gives it.
  std::vector<at::Tensor> parts(const at::Tensor& places) const;

  // [N, ...] → [P, ...]; what padding holds is arbitrary but finite if the tokens are.
  at::Tensor pad(const at::Tensor& tokens) const;
  // [P, ...] → [N, ...]
  at::Tensor unpad(const at::Tensor& places) const;

 private:
  std::vector<Bucket> buckets_;
  std::int64_t num_tokens_ = 0, num_places_ = 0;
  bool in_place_ = true;  // tokens are places: nothing to move
  at::Tensor token_of_;   // [P], padding has a token of its sequence
  at::Tensor place_of_;   // [N]
  at::Tensor offsets_;    // [S+1]
  std::int64_t longest_ = 0;
};

}  // namespace floe::nn
