#include "floe/kernels/dispatch.cuh"
#include "floe/kernels/launch.h"
#include "floe/kernels/pack.cuh"

namespace floe::kernels {
namespace {

// One block per token; its threads take pairs of features (i, i + dim / 2) of all heads.
template <class T>
__global__ void rotary_kernel(RotaryShape shape, T* x, const T* cos, const T* sin, bool backward) {
  const int half = static_cast<int>(shape.dim) / 2, pairs = static_cast<int>(shape.heads) * half;
  const std::int64_t token = blockIdx.x;
  x += token * shape.token_stride;
  cos += token * shape.dim;
  sin += token * shape.dim;
  for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += blockDim.x) {
    const int head = pair / half, i = pair - head * half;
    T* low = x + head * shape.head_stride + i;
    T* high = low + half;
    const float a = to_float(*low), b = to_float(*high);
    const float cos_low = to_float(cos[i]), cos_high = to_float(cos[i + half]);
    const float sin_low = to_float(sin[i]), sin_high = to_float(sin[i + half]);
    *low = from_float<T>(backward ? a * cos_low + b * sin_high : a * cos_low - b * sin_low);
    *high = from_float<T>(backward ? b * cos_high - a * sin_low : b * cos_high + a * sin_high);
  }
}

}  // namespace

void launch_rotary(Type type, const RotaryShape& shape, void* x, const void* cos, const void* sin,
                   bool backward, cudaStream_t stream) {
  constexpr int kThreads = 256;
  if (shape.tokens == 0) return;
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    rotary_kernel<<<static_cast<unsigned>(shape.tokens), kThreads, 0, stream>>>(
        shape, static_cast<T*>(x), static_cast<const T*>(cos), static_cast<const T*>(sin),
        backward);
  });
}

}  // namespace floe::kernels
