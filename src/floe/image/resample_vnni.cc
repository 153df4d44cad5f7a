// Resampling with the dot products of AVX-512 VNNI: product and sum in one, a tenth of the time of
// a whole picture less.
#include <cstring>

#include "floe/image/resample_kernels.h"

#ifdef __x86_64__
#include <immintrin.h>

#define FLOE_TARGET __attribute__((target("avx2,avx512vl,avx512vnni")))
#define FLOE_ROWS rows_vnni
#define FLOE_BYTES bytes_vnni

namespace floe::image {
namespace {

FLOE_TARGET inline __m256i add_products(__m256i sum, __m256i a, __m256i b) {
  return _mm256_dpwssd_epi32(sum, a, b);
}

}  // namespace
}  // namespace floe::image

#include "floe/image/resample_x86.inc"

#else  // never called: best_isa() is plain on other processors

namespace floe::image {

int rows_vnni(const Weights&, const Rows&, int, int, std::uint8_t*) { return 0; }
std::size_t bytes_vnni(const Weights&, int, const std::uint8_t*, std::size_t, std::size_t,
                       std::uint8_t*) {
  return 0;
}

}  // namespace floe::image

#endif
