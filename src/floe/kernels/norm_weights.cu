#include "floe/kernels/dispatch.cuh"
#include "floe/kernels/launch.h"
#include "floe/kernels/pack.cuh"

namespace floe::kernels {
namespace {

// Sums over rows of grad · normed x and of grad: a block has a strip of rows and kColumns packs of
// columns, a thread a pack of every kLanes-th row of it.
constexpr int kColumns = 32, kLanes = 8;

template <class T>
__global__ void __launch_bounds__(kColumns* kLanes, 4)
    weight_grads_kernel(NormShape shape, const T* __restrict__ grad, const T* __restrict__ x,
                        const float* __restrict__ mean, const float* __restrict__ rstd,
                        float* __restrict__ partials) {
  constexpr int kSize = Pack<T>::kSize;
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x) * kSize;
  const std::int64_t strip = (shape.rows + gridDim.y - 1) / gridDim.y;
  const std::int64_t begin = strip * blockIdx.y, end = min(begin + strip, shape.rows);
  float weights[kSize] = {}, biases[kSize] = {};
  if (column < shape.dim) {
#pragma unroll 2
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kLanes) {
      const Pack<T> g = load(grad + row * shape.dim + column),
                    v = load(x + row * shape.dim + column);
      const float average = shape.centred ? mean[row] : 0.0f, scale = rstd[row];
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        const float slope = to_float(g.values[k]);
        weights[k] += slope * ((to_float(v.values[k]) - average) * scale);
        biases[k] += slope;
      }
    }
  }
  // In a fixed order, so that the sum is the same each time.
  __shared__ float parts[kLanes / 2][kSize][kColumns];
#pragma unroll
  for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float* sums = which ? biases : weights;
      if (threadIdx.y >= half && threadIdx.y < 2 * half)
        for (int k = 0; k < kSize; ++k) parts[threadIdx.y - half][k][threadIdx.x] = sums[k];
      __syncthreads();
      if (threadIdx.y < half)
        for (int k = 0; k < kSize; ++k) sums[k] += parts[threadIdx.y][k][threadIdx.x];
      __syncthreads();
    }
  }
  if (threadIdx.y == 0 && column < shape.dim) {
    float* to = partials + static_cast<std::int64_t>(blockIdx.y) * 2 * shape.dim + column;
    for (int k = 0; k < kSize; ++k) to[k] = weights[k], to[shape.dim + k] = biases[k];
  }
}

// partials [strips, 2 · dim] to the two gradients.
template <class T>
__global__ void sum_strips_kernel(const float* __restrict__ partials, int strips, std::int64_t dim,
                                  T* __restrict__ weight_grad, T* __restrict__ bias_grad) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0;
  if (column < 2 * dim) {
#pragma unroll 4
    for (int strip = threadIdx.y; strip < strips; strip += kLanes)
      sum += partials[strip * 2 * dim + column];
  }
  __shared__ float parts[kLanes][kColumns];
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= 2 * dim) return;
  for (int lane = 1; lane < kLanes; ++lane) sum += parts[lane][threadIdx.x];
  if (column < dim)
    weight_grad[column] = from_float<T>(sum);
  else if (bias_grad)
    bias_grad[column - dim] = from_float<T>(sum);
}

}  // namespace

void launch_norm_weight_grads(Type type, const NormShape& shape, const void* grad, const void* x,
                              const float* mean, const float* rstd, float* partials, int strips,
                              void* weight_grad, void* bias_grad, cudaStream_t stream) {
  const dim3 threads(kColumns, kLanes);
  const auto blocks = [](std::int64_t columns) {
    return static_cast<unsigned>((columns + kColumns - 1) / kColumns);
  };
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    weight_grads_kernel<<<dim3(blocks(shape.dim / Pack<T>::kSize), strips), threads, 0, stream>>>(
        shape, static_cast<const T*>(grad), static_cast<const T*>(x), mean, rstd, partials);
    sum_strips_kernel<<<blocks(2 * shape.dim), threads, 0, stream>>>(
        partials, strips, shape.dim, static_cast<T*>(weight_grad), static_cast<T*>(bias_grad));
  });
}

}  // namespace floe::kernels
