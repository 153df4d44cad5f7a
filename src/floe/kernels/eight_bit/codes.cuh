// From values to 8-bit codes with one scale per row.
#pragma once

#include <cuda_fp8.h>

#include <cfloat>

namespace floe::kernels {

constexpr float kMostE4m3 = 448.0f, kMostE5m2 = 57344.0f;

// As to_eight_bit has it, bit for bit: a true division, and no scale that is subnormal.
__device__ inline float scale_of(float largest, float most) {
  return fmaxf(__fdiv_rn(largest, most), FLT_MIN);
}

// x / scale with the rounding of a true division, for many x: the remainder of the product with the
// inverse is exact (fma), so one step brings it to the nearest float. Quotients that are subnormal
// are left out, their code is zero.
class DivideBy {
 public:
  __device__ explicit DivideBy(float scale)
      : inverse_(1.0f / scale), minus_scale_(scale > FLT_MAX ? 0.0f : -scale) {}
  __device__ float operator()(float x) const {
    const float quotient = __fmul_rn(x, inverse_);
    const float rest = __fmaf_rn(quotient, minus_scale_, x);
    return rest == 0 ? quotient : __fmaf_rn(rest, inverse_, quotient);  // -0 stays -0
  }

 private:
  float inverse_, minus_scale_;  // 0 for an infinite scale: x / inf is 0, inf / inf no number
};

template <int kSize>
struct alignas(kSize) PackedCodes {
  unsigned char values[kSize];
};

// What values without a scale are divided by.
struct AsTheyAre {
  __device__ float operator()(float x) const { return x; }
};

// Two at a time, as the GPU converts them.
template <bool kWide, int kSize, class Divide>
__device__ PackedCodes<kSize> codes_of(const float* values, const Divide& divide) {
  PackedCodes<kSize> codes;
#pragma unroll
  for (int k = 0; k < kSize; k += 2) {
    const __nv_fp8x2_storage_t pair =
        __nv_cvt_float2_to_fp8x2(make_float2(divide(values[k]), divide(values[k + 1])),
                                 __NV_SATFINITE, kWide ? __NV_E5M2 : __NV_E4M3);
    codes.values[k] = static_cast<unsigned char>(pair & 0xff);
    codes.values[k + 1] = static_cast<unsigned char>(pair >> 8);
  }
  return codes;
}

__device__ inline float value_of_e4m3(unsigned char code) {
  __nv_fp8_e4m3 value;
  value.__x = code;
  return static_cast<float>(value);
}

}  // namespace floe::kernels
