// Pillow's bicubic resampling in integers: which source samples make each result with what weights,
// and the two passes. Every implementation gives the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace floe::image {

// Which instructions of the processor the kernels use; the results are the same bytes.
// vnni: AVX-512 VNNI on 256 bits.
enum class Isa { plain, avx2, vnni };

// The best that this processor has.
Isa best_isa();
bool is_supported(Isa isa);
std::string_view name_of(Isa isa);

// The weights of a range of results along one axis, in fixed point with 22 bits.
// Note [Split weights]: for processors that multiply 16 bits, a weight is also kept in two parts:
// weight = high * 2^15 + low, 0 <= low < 2^15. Sums of products of the parts may wrap around, their
// combination does not: it is the sum that 32 bits hold.
class Weights {
 public:
  // Each result has room for a multiple of so many weights; those behind the last are zero.
  static constexpr int kGroup = 4;
  static constexpr int kFractionBits = 22, kLowBits = 15;

  struct Window {
    int first = 0;  // source sample
    int count = 0;  // source samples
  };

  // Results [first, first + count) of resizing `in_size` samples to `out_size`.
  void compute(std::int64_t in_size, std::int64_t out_size, std::int64_t first, int count);

  int num_results() const { return static_cast<int>(windows_.size()); }
  const Window& window(int i) const { return windows_[static_cast<std::size_t>(i)]; }
  const std::int32_t* whole(int i) const { return &whole_[offset(i)]; }
  const std::int16_t* high(int i) const { return &high_[offset(i)]; }
  const std::int16_t* low(int i) const { return &low_[offset(i)]; }
  // The source samples that any result needs: [begin, end).
  int begin() const { return begin_; }
  int end() const { return end_; }

 private:
  std::size_t offset(int i) const { return static_cast<std::size_t>(i) * room_; }

  std::size_t room_ = 0;  // weights per result
  int begin_ = 0, end_ = 0;
  std::vector<Window> windows_;
  std::vector<double> exact_;
  std::vector<std::int32_t> whole_;
  std::vector<std::int16_t> high_, low_;
};

// Rows of bytes in memory, `stride` bytes apart.
struct Rows {
  const std::uint8_t* data = nullptr;
  std::size_t stride = 0;
  const std::uint8_t* end = nullptr;  // behind the last byte that may be read
};

// Across: every one of `num_rows` rows of RGB pixels gives a row of weights.num_results() RGB
// pixels, without gaps between them.
void resample_across(const Weights& weights, const Rows& in, int num_rows, std::uint8_t* out,
                     Isa isa);
// Down: result i is a weighted sum of rows, each `in.stride` bytes of which all count; results lie
// without gaps. Row 0 of `in` is source sample `first_row`.
void resample_down(const Weights& weights, const Rows& in, int first_row, std::uint8_t* out,
                   Isa isa);

}  // namespace floe::image
