// Sixteen bytes of values at a time, and arithmetic in fp32 whatever they are stored in: also GELU
// and its slope.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace floe::kernels {

template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16(x);
}

template <class T>
__device__ Pack<T> load(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}
template <class T>
__device__ void store(T* to, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(to) = pack;
}

// 2^x and 1/x as the hardware has them, to two units of the last place; zero for what would lie
// below the normal numbers.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What GELU is made of at x: with Φ the normal distribution's cumulative function, x · Φ(x) and its
// slope.
struct Gelu {
  float value, slope;
};
// For fp32.
__device__ inline Gelu gelu_at(float x, float) {
  const float cdf = 0.5f * (1.0f + erff(x * 0.70710678118654752f));
  return {x * cdf, cdf + x * 0.39894228040143268f * expf(-0.5f * x * x)};
}
// For narrower types: Φ(-|x|) by Abramowitz and Stegun's 7.1.26, whose error is below 1.5e-7 and
// whose exponential is the density's own. Passes over memory hide no more arithmetic than this.
template <class T>
__device__ Gelu gelu_at(float x, T) {
  const float far = fabsf(x), s = x * 0.84932180028801905f;  // s² = x² / 2 · log2(e)
  const float e = power_of_two(-s * s);
  const float t = reciprocal(1.0f + 0.23164189f * far);
  const float tail =
      e * t *
      (0.127414796f +
       t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f))));
  const float cdf = x < 0 ? tail : 1.0f - tail;
  return {fmaxf(x, 0.0f) - far * tail, cdf + x * 0.39894228040143268f * e};
}

// x · σ(1.702 x), CLIP's GELU.
__device__ inline float quick_gelu_at(float x) { return __fdividef(x, 1.0f + __expf(-1.702f * x)); }

__device__ inline float warp_sum(float x) {
  for (int distance = 16; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xffffffffU, x, distance);
  return x;
}

}  // namespace floe::kernels
