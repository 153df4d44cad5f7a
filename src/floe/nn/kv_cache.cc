#include "floe/nn/kv_cache.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "floe/core/error.h"

namespace floe::nn {

KvCache::Layer& KvCache::layer(std::size_t index, const at::Tensor& like) {
  if (layers_.size() <= index) layers_.resize(index + 1);
  Layer& layer = layers_[index];
  if (!layer.keys.defined()) {
    // Zeros: masked places are multiplied by zero, which must not meet a NaN.
    layer.keys = at::zeros({sequences(), capacity_, like.size(1), like.size(2)}, like.options());
    layer.values = at::zeros_like(layer.keys);
  }
  return layer;
}

void KvCache::reserve(std::int64_t capacity) {
  if (capacity <= capacity_) return;
  const std::int64_t added = std::max(capacity - capacity_, capacity_);
  capacity_ += added;
  for (Layer& layer : layers_) {
    if (!layer.keys.defined()) continue;
    const at::Tensor room = at::zeros(
        {layer.keys.size(0), added, layer.keys.size(2), layer.keys.size(3)}, layer.keys.options());
    layer.keys = at::cat({layer.keys, room}, 1);
    layer.values = at::cat({layer.values, room}, 1);
  }
}

void KvCache::advance(const std::vector<std::int64_t>& lengths) {
  require(lengths.size() == past_.size(), "the cache holds ", past_.size(), " sequences, not ",
          lengths.size());
  for (std::size_t s = 0; s < lengths.size(); ++s) past_[s] += lengths[s];
}

void KvCache::reorder(const std::vector<std::int64_t>& from) {
  bool moved = from.size() != past_.size();
  std::vector<std::int64_t> past;
  for (std::size_t s = 0; s < from.size(); ++s) {
    require(from[s] >= 0 && from[s] < sequences(), "the cache holds ", sequences(),
            " sequences, but number ", from[s], " is asked for");
    moved = moved || from[s] != static_cast<std::int64_t>(s);
    past.push_back(past_[static_cast<std::size_t>(from[s])]);
  }
  if (!moved) return;
  past_ = std::move(past);
  for (Layer& layer : layers_) {
    const at::Tensor index = at::tensor(from, at::kLong).to(layer.keys.device());
    layer.keys = layer.keys.index_select(0, index);
    layer.values = layer.values.index_select(0, index);
  }
}

}  // namespace floe::nn
