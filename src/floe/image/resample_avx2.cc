// Resampling with AVX2.
#include <cstring>

#include "floe/image/resample_kernels.h"

#ifdef __x86_64__
#include <immintrin.h>

#define FLOE_TARGET __attribute__((target("avx2")))
#define FLOE_ROWS rows_avx2
#define FLOE_BYTES bytes_avx2

namespace floe::image {
namespace {

FLOE_TARGET inline __m256i add_products(__m256i sum, __m256i a, __m256i b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

}  // namespace
}  // namespace floe::image

#include "floe/image/resample_x86.inc"

#else  // never called: best_isa() is plain on other processors

namespace floe::image {

int rows_avx2(const Weights&, const Rows&, int, int, std::uint8_t*) { return 0; }
std::size_t bytes_avx2(const Weights&, int, const std::uint8_t*, std::size_t, std::size_t,
                       std::uint8_t*) {
  return 0;
}

}  // namespace floe::image

#endif
