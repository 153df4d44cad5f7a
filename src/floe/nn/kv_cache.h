// Keys and values of the tokens that a model has seen, for generation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace floe::nn {

// A forward writes behind what is there; `advance` then makes it part of the past.
class KvCache {
 public:
  KvCache(std::int64_t sequences, std::int64_t capacity)
      : capacity_(capacity), past_(static_cast<std::size_t>(sequences), 0) {}

  std::int64_t sequences() const { return static_cast<std::int64_t>(past_.size()); }
  std::int64_t capacity() const { return capacity_; }
  // How many tokens of each sequence are in the cache.
  const std::vector<std::int64_t>& past() const { return past_; }

  // Memory for one layer, [sequences, capacity, heads, dim], made when first asked for.
  struct Layer {
    at::Tensor keys, values;
  };
  Layer& layer(std::size_t index, const at::Tensor& like);

  // Room for at least so many tokens of a sequence; grows by doubling, so that growing costs little.
  void reserve(std::int64_t capacity);
  // The tokens of the forward that just ended belong to the past.
  void advance(const std::vector<std::int64_t>& lengths);
  // Sequence i goes on from what sequence from[i] has seen: beams change places, or split; sequences
  // that are not named are gone.
  void reorder(const std::vector<std::int64_t>& from);

 private:
  std::int64_t capacity_;
  std::vector<std::int64_t> past_;
  std::vector<Layer> layers_;
};

}  // namespace floe::nn
