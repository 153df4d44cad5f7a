#include "floe/kernels/dispatch.cuh"
#include "floe/kernels/launch.h"
#include "floe/kernels/pack.cuh"

namespace floe::kernels {
namespace {

// One block per token; its threads take kSize neighbouring pairs of features (i, i + dim / 2)
// at a time.
template <class T, int kSize>
__global__ void rotary_kernel(RotaryShape shape, T* x, const T* cos, const T* sin, bool backward) {
  struct alignas(kSize * sizeof(T)) Some {
    T values[kSize];
  };
  const auto some = [](const T* from) { return *reinterpret_cast<const Some*>(from); };
  const int half = static_cast<int>(shape.dim) / 2, steps = half / kSize;
  const std::int64_t token = blockIdx.x;
  x += token * shape.token_stride;
  cos += token * shape.dim;
  sin += token * shape.dim;
  for (int step = static_cast<int>(threadIdx.x); step < static_cast<int>(shape.heads) * steps;
       step += blockDim.x) {
    const int head = step / steps, i = (step - head * steps) * kSize;
    T* low = x + head * shape.head_stride + i;
    T* high = low + half;
    Some lows = some(low), highs = some(high);
    const Some cos_low = some(cos + i), cos_high = some(cos + i + half);
    const Some sin_low = some(sin + i), sin_high = some(sin + i + half);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float a = to_float(lows.values[k]), b = to_float(highs.values[k]);
      const float cl = to_float(cos_low.values[k]), ch = to_float(cos_high.values[k]);
      const float sl = to_float(sin_low.values[k]), sh = to_float(sin_high.values[k]);
      lows.values[k] = from_float<T>(backward ? a * cl + b * sh : a * cl - b * sl);
      highs.values[k] = from_float<T>(backward ? b * ch - a * sl : b * ch + a * sh);
    }
    *reinterpret_cast<Some*>(low) = lows;
    *reinterpret_cast<Some*>(high) = highs;
  }
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

}  // namespace

void launch_rotary(Type type, const RotaryShape& shape, void* x, const void* cos, const void* sin,
                   bool backward, cudaStream_t stream) {
  if (shape.tokens == 0) return;
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kSize = Pack<T>::kSize;
    const auto start = [&](auto kernel, int threads) {
      kernel<<<static_cast<unsigned>(shape.tokens), threads, 0, stream>>>(
          shape, static_cast<T*>(x), static_cast<const T*>(cos), static_cast<const T*>(sin),
          backward);
    };
    const bool whole = shape.dim / 2 % kSize == 0 && shape.token_stride % kSize == 0 &&
                       shape.head_stride % kSize == 0 && aligned(x) && aligned(cos) && aligned(sin);
    if (whole)
      start(rotary_kernel<T, kSize>, 128);
    else
      start(rotary_kernel<T, 1>, 256);
  });
}

}  // namespace floe::kernels
