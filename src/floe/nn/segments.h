// Packed sequences as attention works on them.
//
// Note [Buckets]
// Attention is the one operation that must keep sequences apart. For it, sequences of similar
// length are laid side by side in a bucket [rows, length], padded at the right. A causal token
// never looks behind itself, so padding at the right needs no mask and the fused kernels apply. All
// buckets lie one after the other in one buffer of places; `pad` and `unpad` go between tokens and
// places, each the other's gradient, without sums. Kernels that take sequences as they are need
// none of this, so it is made when it is first asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace floe::nn {

// What a pass reads of a batch, taken apart: tensors, whose values may change from one batch to the
// next, and numbers, which are built into the kernels' launches. Two batches whose numbers are
// equal run the same launches, so work that was recorded for one serves the other once its tensors
// are copied over.
struct BatchParts {
  std::vector<at::Tensor> tensors;
  std::vector<std::int64_t> numbers;

  void add(std::int64_t number) { numbers.push_back(number); }
  // Its shape and dtype are numbers, its values are not.
  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      add(std::int64_t{-1});
      return;
    }
    add(tensor.dim());
    numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
    add(static_cast<std::int64_t>(tensor.scalar_type()));
    tensors.push_back(tensor);
  }
};

struct Bucket {
  std::int64_t first_place = 0;  // it has the places [first_place, first_place + rows * length)
  std::int64_t rows = 0, length = 0;
  std::vector<std::int64_t> sequences;  // which sequence lies in each row
  std::vector<std::int64_t> lengths;    // and how many tokens it has
  // Places that nobody may look at although a token lies there. Undefined: none.
  at::Tensor hidden;  // [rows, length] bool

  // Whether no row has padding.
  bool is_full() const;
  // The bucket's part of `places` [P, ...] as [rows, length, ...].
  at::Tensor of(const at::Tensor& places) const;
};

class Segments {
 public:
  Segments() = default;
  // From offsets [S+1] and, where some tokens are padding, `attended` [N] (else undefined). Both on
  // the CPU; the result works with tensors on `device`. `rounded`: the longest sequence counts as a
  // little longer (bucket_size), so that it is the same for most batches.
  Segments(const at::Tensor& offsets, const at::Tensor& attended, at::Device device,
           bool rounded = false);

  const std::vector<Bucket>& buckets() const { return places().buckets; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_places() const { return places().count; }

  // Where sequences begin, [S+1] int32 on the device, and the longest one: for kernels that take
  // them without padding. Undefined where some tokens are padding.
  const at::Tensor& offsets() const { return offsets_; }
  std::int64_t longest() const { return longest_; }
  // The same, [S+1] on the host.
  std::vector<std::int64_t> begins() const;
  // The buckets' parts of `places` [P, ...], each as Bucket::of gives it.
  std::vector<at::Tensor> parts(const at::Tensor& places) const;

  // [N, ...] → [P, ...]; what padding holds is arbitrary but finite if the tokens are.
  at::Tensor pad(const at::Tensor& tokens) const;
  // [P, ...] → [N, ...]
  at::Tensor unpad(const at::Tensor& places) const;

  // With buckets and places if they have been made.
  void add_parts(BatchParts& parts) const;
  void make_places() const { places(); }

 private:
  struct Places {
    std::vector<Bucket> buckets;
    std::int64_t count = 0;
    bool in_place = true;  // tokens are places: nothing to move
    at::Tensor token_of;   // [P], padding has a token of its sequence
    at::Tensor place_of;   // [N]
  };
  const Places& places() const;
  std::shared_ptr<const Places> lay_out() const;

  at::Tensor host_offsets_, attended_;
  at::Device device_ = at::kCPU;
  std::int64_t num_tokens_ = 0;
  at::Tensor offsets_;  // [S+1]
  std::int64_t longest_ = 0;
  mutable std::shared_ptr<const Places> places_;  // a pass runs on one thread at a time
};

}  // namespace floe::nn
