// Note [Split weights] in resample.h says why every product appears twice.
#include <cstring>

#include "floe/image/resample_kernels.h"

#ifdef __x86_64__
#include <immintrin.h>

#define FLOE_AVX2 __attribute__((target("avx2")))

namespace floe::image {
namespace {

FLOE_AVX2 inline __m256i add_products(__m256i sum, __m256i a, __m256i b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

FLOE_AVX2 inline __m256i combined(__m256i high, __m256i low) {
  return _mm256_add_epi32(_mm256_slli_epi32(high, Weights::kLowBits), low);
}

// Sums to results, rounded but not clipped.
FLOE_AVX2 inline __m256i rounded(__m256i sum) {
  const __m256i half = _mm256_set1_epi32(1 << (Weights::kFractionBits - 1));
  return _mm256_srai_epi32(_mm256_add_epi32(sum, half), Weights::kFractionBits);
}

// The lower half is the sum of a's halves, the upper that of b's.
FLOE_AVX2 inline __m256i halves_added(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                          _mm256_permute2x128_si256(a, b, 0x31));
}

inline void put_pixel(std::uint8_t* out, std::uint32_t rgb, bool is_last) {
  if (is_last)
    std::memcpy(out, &rgb, 3);
  else
    std::memcpy(out, &rgb, 4);
}

// A group is four pixels: the lower half of a register works on the first two, the upper on the
// others, as 16-bit pairs R R, G G, B B. Rows go together because they share weights.
template <int kRows>
FLOE_AVX2 void across(const Weights& weights, const std::uint8_t* in, std::size_t stride,
                      std::uint8_t* out) {
  const __m256i pairs =
      _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                       -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m256i spread = _mm256_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,  //
                                          4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
  const int num_results = weights.num_results();
  const std::size_t out_stride = 3 * static_cast<std::size_t>(num_results);
  for (int i = 0; i < num_results; ++i, out += 3) {
    const auto [first, count] = weights.window(i);
    const std::int16_t* high_weights = weights.high(i);
    const std::int16_t* low_weights = weights.low(i);
    const std::uint8_t* pixels = in + 3 * static_cast<std::ptrdiff_t>(first);
    __m256i high[kRows], low[kRows];
    for (int r = 0; r < kRows; ++r) high[r] = low[r] = _mm256_setzero_si256();
    for (int t = 0; t < count; t += Weights::kGroup, pixels += 3 * Weights::kGroup) {
      std::int64_t four_high, four_low;
      std::memcpy(&four_high, high_weights + t, sizeof four_high);
      std::memcpy(&four_low, low_weights + t, sizeof four_low);
      const __m256i h = _mm256_shuffle_epi8(_mm256_set1_epi64x(four_high), spread);
      const __m256i l = _mm256_shuffle_epi8(_mm256_set1_epi64x(four_low), spread);
      for (int r = 0; r < kRows; ++r) {
        const std::uint8_t* at = pixels + static_cast<std::size_t>(r) * stride;
        const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        const __m256i p = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), pairs);
        high[r] = add_products(high[r], p, h);
        low[r] = add_products(low[r], p, l);
      }
    }
    // Both halves of a register hold a part of the sums. Of four rows two share a register from here
    // on: that saves half of the work behind the sums, which is a third of all.
    if constexpr (kRows == 4) {
      const __m256i rows01 =
          rounded(halves_added(combined(high[0], low[0]), combined(high[1], low[1])));
      const __m256i rows23 =
          rounded(halves_added(combined(high[2], low[2]), combined(high[3], low[3])));
      const __m256i words = _mm256_packs_epi32(rows01, rows23);
      const __m256i bytes = _mm256_packus_epi16(words, words);  // rows 0 2 0 2 1 3 1 3
      const auto rows02 = static_cast<std::uint64_t>(_mm256_extract_epi64(bytes, 0));
      const auto rows13 = static_cast<std::uint64_t>(_mm256_extract_epi64(bytes, 2));
      // The fourth byte is written again by the next pixel; the last one has no next.
      const bool is_last = i + 1 == num_results;
      put_pixel(out, static_cast<std::uint32_t>(rows02), is_last);
      put_pixel(out + out_stride, static_cast<std::uint32_t>(rows13), is_last);
      put_pixel(out + 2 * out_stride, static_cast<std::uint32_t>(rows02 >> 32), is_last);
      put_pixel(out + 3 * out_stride, static_cast<std::uint32_t>(rows13 >> 32), is_last);
    } else {
      for (int r = 0; r < kRows; ++r) {
        const __m256i sum = combined(high[r], low[r]);
        const __m256i result = rounded(halves_added(sum, sum));
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(result), _mm_setzero_si128());
        const int rgb = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
        std::memcpy(out + static_cast<std::size_t>(r) * out_stride, &rgb, 3);
      }
    }
  }
}

}  // namespace

int rows_avx2(const Weights& weights, const Rows& in, int y, int num_rows, std::uint8_t* out) {
  constexpr int kRowsAtOnce = 4;
  const std::uint8_t* row = in.data + in.stride * static_cast<std::size_t>(y);
  out += 3 * static_cast<std::size_t>(weights.num_results()) * static_cast<std::size_t>(y);
  // The last group may begin with the last pixel that counts, and takes 16 bytes.
  const std::ptrdiff_t need = 3 * std::ptrdiff_t{weights.end()} + 13;
  const auto fits = [&](int count) {
    return y + count <= num_rows &&
           in.end - (row + in.stride * static_cast<std::size_t>(count - 1)) >= need;
  };
  if (fits(kRowsAtOnce)) {
    across<kRowsAtOnce>(weights, row, in.stride, out);
    return kRowsAtOnce;
  }
  if (!fits(1)) return 0;
  across<1>(weights, row, in.stride, out);
  return 1;
}

// 32 neighbouring bytes at once; rows go in pairs.
FLOE_AVX2 std::size_t bytes_avx2(const Weights& weights, int i, const std::uint8_t* top,
                                 std::size_t stride, std::size_t width, std::uint8_t* out) {
  const int count = weights.window(i).count;
  const std::int16_t* high_weights = weights.high(i);
  const std::int16_t* low_weights = weights.low(i);
  const __m256i zero = _mm256_setzero_si256();
  std::size_t x = 0;
  for (; x + 32 <= width; x += 32) {
    __m256i high[4], low[4];
    for (int q = 0; q < 4; ++q) high[q] = low[q] = zero;
    for (int t = 0; t < count; t += 2) {
      const std::uint8_t* a = top + stride * static_cast<std::size_t>(t) + x;
      const std::uint8_t* b = t + 1 < count ? a + stride : a;  // its weight is zero
      const __m256i row_a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
      const __m256i row_b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
      std::int32_t two_high, two_low;
      std::memcpy(&two_high, high_weights + t, sizeof two_high);
      std::memcpy(&two_low, low_weights + t, sizeof two_low);
      const __m256i h = _mm256_set1_epi32(two_high), l = _mm256_set1_epi32(two_low);
      const __m256i first = _mm256_unpacklo_epi8(row_a, row_b);
      const __m256i last = _mm256_unpackhi_epi8(row_a, row_b);
      const __m256i quarter[4]{_mm256_unpacklo_epi8(first, zero), _mm256_unpackhi_epi8(first, zero),
                               _mm256_unpacklo_epi8(last, zero), _mm256_unpackhi_epi8(last, zero)};
      for (int q = 0; q < 4; ++q) {
        high[q] = add_products(high[q], quarter[q], h);
        low[q] = add_products(low[q], quarter[q], l);
      }
    }
    __m256i result[4];
    for (int q = 0; q < 4; ++q) result[q] = rounded(combined(high[q], low[q]));
    const __m256i front = _mm256_packs_epi32(result[0], result[1]);
    const __m256i back = _mm256_packs_epi32(result[2], result[3]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), _mm256_packus_epi16(front, back));
  }
  return x;
}

}  // namespace floe::image

#else  // never called: best_isa() is plain on other processors

namespace floe::image {

int rows_avx2(const Weights&, const Rows&, int, int, std::uint8_t*) { return 0; }
std::size_t bytes_avx2(const Weights&, int, const std::uint8_t*, std::size_t, std::size_t,
                       std::uint8_t*) {
  return 0;
}

}  // namespace floe::image

#endif
