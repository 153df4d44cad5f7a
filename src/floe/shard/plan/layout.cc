#include "floe/shard/plan/layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "floe/core/bytes.h"

namespace floe::shard {

FlatLayout::FlatLayout(std::vector<std::int64_t> numels, int world, std::int64_t granule)
    : numels_(std::move(numels)), world_(world) {
  for (const std::int64_t numel : numels_) {
    offsets_.push_back(numel_);
    numel_ += numel;
  }
  slice_numel_ = round_up(ceil_div(numel_, world), granule);
}

std::vector<Piece> FlatLayout::pieces(int rank) const {
  const std::int64_t begin = rank * slice_numel_, end = begin + slice_numel_;
  std::vector<Piece> result;
  for (std::size_t i = 0; i < numels_.size(); ++i) {
    const std::int64_t from = std::max(begin, offsets_[i]);
    const std::int64_t to = std::min(end, offsets_[i] + numels_[i]);
    if (from < to) result.push_back({i, from - offsets_[i], to - from, from - begin});
  }
  return result;
}

std::vector<std::size_t> aligned_order(const std::vector<std::int64_t>& numels) {
  std::vector<std::size_t> order(numels.size());
  std::iota(order.begin(), order.end(), 0);
  const auto alignment = [&](std::size_t i) {
    return std::min<std::int64_t>(numels[i] & -numels[i], 64);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return alignment(a) > alignment(b); });
  return order;
}

}  // namespace floe::shard
