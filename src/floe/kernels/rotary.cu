#include "floe/kernels/dispatch.cuh"
#include "floe/kernels/launch.h"
#include "floe/kernels/pack.cuh"

namespace floe::kernels {
namespace {

// A thread has kSize neighbouring pairs of features (i, i + dim / 2) of one head of one token.
template <class T, int kSize>
__global__ void rotary_kernel(RotaryShape shape, std::int64_t items, T* x, T* also, const T* cos,
                              const T* sin, bool backward) {
  struct alignas(kSize * sizeof(T)) Some {
    T values[kSize];
  };
  const auto some = [](const T* from) { return *reinterpret_cast<const Some*>(from); };
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= items) return;
  const int half = static_cast<int>(shape.dim) / 2, steps = half / kSize;
  const int of_token = static_cast<int>(shape.first.heads + shape.second.heads) * steps;
  const std::int64_t token = item / of_token;
  const int place = static_cast<int>(item - token * of_token);
  const int head = place / steps, i = (place - head * steps) * kSize;
  const int beyond = head - static_cast<int>(shape.first.heads);
  T* low = beyond < 0
               ? x + token * shape.first.token_stride + head * shape.first.head_stride + i
               : also + token * shape.second.token_stride + beyond * shape.second.head_stride + i;
  T* high = low + half;
  cos += token * shape.dim + i;
  sin += token * shape.dim + i;
  Some lows = some(low), highs = some(high);
  const Some cos_low = some(cos), cos_high = some(cos + half);
  const Some sin_low = some(sin), sin_high = some(sin + half);
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

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

}  // namespace

void launch_rotary(Type type, const RotaryShape& shape, void* x, void* also, const void* cos,
                   const void* sin, bool backward, cudaStream_t stream) {
  constexpr int kThreads = 128;
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    const auto start = [&](auto kernel, int size) {
      const std::int64_t items =
          shape.tokens * (shape.first.heads + shape.second.heads) * (shape.dim / 2 / size);
      if (items == 0) return;
      kernel<<<static_cast<unsigned>((items + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
          shape, items, static_cast<T*>(x), static_cast<T*>(also), static_cast<const T*>(cos),
          static_cast<const T*>(sin), backward);
    };
    constexpr int kSize = Pack<T>::kSize;
    const auto whole = [&](const RotaryShape::Heads& heads, const void* values) {
      return heads.heads == 0 ||
             (heads.token_stride % kSize == 0 && heads.head_stride % kSize == 0 && aligned(values));
    };
    if (shape.dim / 2 % kSize == 0 && whole(shape.first, x) && whole(shape.second, also) &&
        aligned(cos) && aligned(sin))
      start(rotary_kernel<T, kSize>, kSize);
    else
      start(rotary_kernel<T, 1>, 1);
  });
}

}  // namespace floe::kernels
