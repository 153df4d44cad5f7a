// Where parameters lie in a flat buffer, and which part each rank owns.
//
// Note [Flat layout]
// The parameters of a group lie one after the other, without gaps; zeros pad the end so that the
// buffer divides into W equal slices, and rank r owns slice r. The all-gather of the slices *is*
// the buffer and the parameters are views into it. A slice holds of each parameter a contiguous
// range of its elements. The order puts parameters with a size that keeps the next one aligned
// first, so that odd sizes (a scalar gate) misalign nothing.
//
// Note [Aligned slices]
// A slice that several ranks share a buffer of begins at a multiple of kSliceAlignment bytes, in
// every dtype in which the group is stored, gathered or reduced: NCCL moves 16 bytes at a time only
// where a slice begins and ends at such an address, and 128 are a line of an accelerator's cache.
// What is not sliced begins where its buffer does and is not padded. Nobody may rely on where a
// slice ends: checkpoints know elements of parameters, never slices.
#pragma once

#include <cstdint>
#include <vector>

namespace floe::shard {

inline constexpr std::int64_t kSliceAlignment = 128;  // bytes; see Note [Aligned slices]

// Elements [first, first + numel) of one parameter, at `slice_offset` of a rank's slice.
struct Piece {
  std::size_t index = 0;  // of the parameter in the group
  std::int64_t first = 0, numel = 0, slice_offset = 0;
};

class FlatLayout {
 public:
  FlatLayout() = default;
  // Slices are multiples of `granule` elements.
  FlatLayout(std::vector<std::int64_t> numels, int world, std::int64_t granule = 1);

  std::size_t size() const { return numels_.size(); }
  std::int64_t numel() const { return numel_; }
  std::int64_t slice_numel() const { return slice_numel_; }
  std::int64_t padded_numel() const { return slice_numel_ * world_; }
  int world() const { return world_; }

  std::int64_t numel(std::size_t index) const { return numels_[index]; }
  std::int64_t offset(std::size_t index) const { return offsets_[index]; }

  // What rank `rank` owns, in order; empty ranges are left out.
  std::vector<Piece> pieces(int rank) const;

 private:
  std::vector<std::int64_t> numels_, offsets_;
  std::int64_t numel_ = 0, slice_numel_ = 0;
  int world_ = 1;
};

// The order of Note [Flat layout]: indices of `numels`, largest power of two that divides first (at
// most 64), otherwise as given.
std::vector<std::size_t> aligned_order(const std::vector<std::int64_t>& numels);

}  // namespace floe::shard
