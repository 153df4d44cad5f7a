// Sixteen bytes of values at a time, and arithmetic in fp32 whatever they are stored in: also what
// GELU and its slope are made of.
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

// The normal distribution's cumulative function at x, and its density times x.
struct Normal {
  float cdf, pull;
};
// For fp32.
__device__ inline Normal normal(float x, float) {
  return {0.5f * (1.0f + erff(x * 0.70710678118654752f)),
          x * 0.39894228040143268f * expf(-0.5f * x * x)};
}
// For narrower types: Abramowitz and Stegun's 7.1.26, whose error is below 1.5e-7 and whose
// exponential is the density's own.
template <class T>
__device__ Normal normal(float x, T) {
  const float e = __expf(-0.5f * x * x);
  const float t = __fdividef(1.0f, 1.0f + 0.3275911f * 0.70710678118654752f * fabsf(x));
  const float tail =
      0.5f * e * t *
      (0.254829592f +
       t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  return {x < 0 ? tail : 1.0f - tail, x * 0.39894228040143268f * e};
}

__device__ inline float warp_sum(float x) {
  for (int distance = 16; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xffffffffU, x, distance);
  return x;
}

}  // namespace floe::kernels
