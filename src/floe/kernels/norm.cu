#include "floe/kernels/dispatch.cuh"
#include "floe/kernels/eight_bit/codes.cuh"
#include "floe/kernels/launch.h"
#include "floe/kernels/pack.cuh"

namespace floe::kernels {
namespace {

// A row belongs to blockDim.x threads, each of which keeps up to kPacks packs of it in registers; a
// block has blockDim.y rows.
constexpr int kPacks = 4;
constexpr int kMaxWarps = 32;

// The first column of a thread's pack p.
template <class T>
__device__ int column_of(int p) {
  return (p * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * Pack<T>::kSize;
}

// Sums of two numbers over the threads of a row.
__device__ float2 row_sum(float a, float b) {
  a = warp_sum(a), b = warp_sum(b);
  if (blockDim.x == 32) return {a, b};
  __shared__ float2 parts[kMaxWarps];
  const int warps = static_cast<int>(blockDim.x) / 32, first = threadIdx.y * warps;
  __syncthreads();  // the numbers of an earlier call have been read
  if (threadIdx.x % 32 == 0) parts[first + threadIdx.x / 32] = {a, b};
  __syncthreads();
  float2 sums{0, 0};
  for (int w = 0; w < warps; ++w) sums.x += parts[first + w].x, sums.y += parts[first + w].y;
  return sums;
}

// The largest of a number over the threads of a row.
__device__ float row_max(float a) {
  for (int distance = 16; distance > 0; distance /= 2)
    a = fmaxf(a, __shfl_xor_sync(0xffffffffU, a, distance));
  if (blockDim.x == 32) return a;
  __shared__ float parts[kMaxWarps];
  const int warps = static_cast<int>(blockDim.x) / 32, first = threadIdx.y * warps;
  if (threadIdx.x % 32 == 0) parts[first + threadIdx.x / 32] = a;
  __syncthreads();
  for (int w = 0; w < warps; ++w) a = fmaxf(a, parts[first + w]);
  return a;
}

// With kCodes also `out` in e4m3 with a scale per row, as launch_coded_rows would make it of `out`.
// Where `kept` is wanted: see Note [Normalised rows in 8 bits].
template <class T, bool kCodes>
__global__ void layer_norm_kernel(NormShape shape, const T* x, const T* added,
                                  const T* __restrict__ weight, const T* __restrict__ bias,
                                  const T* __restrict__ sum_bias, T* __restrict__ sum,
                                  T* __restrict__ out, float* __restrict__ mean,
                                  float* __restrict__ rstd, unsigned char* __restrict__ codes,
                                  float* __restrict__ code_scales,
                                  unsigned char* __restrict__ kept) {
  constexpr int kSize = Pack<T>::kSize;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool inside = row < shape.rows;  // all threads meet in row_sum
  const std::int64_t base = row * shape.dim;
  float values[kPacks][kSize];
  float total = 0;
  // All loads before the first store, which the compiler could not move them across.
  Pack<T> packs[kPacks], more[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    if (inside && column < shape.dim) packs[p] = load(x + base + column);
  }
  if (added) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = column_of<T>(p);
      if (inside && column < shape.dim) more[p] = load(added + base + column);
    }
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const bool real = inside && column_of<T>(p) < shape.dim;
    for (int k = 0; k < kSize; ++k) {
      float value = real ? to_float(packs[p].values[k]) : 0.0f;
      // Rounded as if the sum had been written and read again: backward sees the same numbers.
      if (real && added) value = to_float(from_float<T>(value + to_float(more[p].values[k])));
      values[p][k] = value;
      total += value;
    }
  }
  if (sum) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = column_of<T>(p);
      if (!inside || column >= shape.dim) continue;
      Pack<T> extra, result;
      if (sum_bias) extra = load(sum_bias + column);
      for (int k = 0; k < kSize; ++k)
        result.values[k] =
            from_float<T>(values[p][k] + (sum_bias ? to_float(extra.values[k]) : 0.0f));
      store(sum + base + column, result);
    }
  }
  const float average = shape.centred ? row_sum(total, 0).x / static_cast<float>(shape.dim) : 0.0f;
  float squares = 0;
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    if (column >= shape.dim) continue;
    for (int k = 0; k < kSize; ++k) squares += (values[p][k] - average) * (values[p][k] - average);
  }
  const float scale = rsqrtf(row_sum(squares, 0).x / static_cast<float>(shape.dim) + shape.eps);
  if (!kCodes && !inside) return;  // else all threads meet in row_max
  if (inside && threadIdx.x == 0 && mean) mean[row] = average;
  if (inside && threadIdx.x == 0 && rstd) rstd[row] = scale;
  float largest = 0;
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    if (!inside || column >= shape.dim) continue;
    const Pack<T> w = load(weight + column);
    Pack<T> b, result;
    if (bias) b = load(bias + column);
    for (int k = 0; k < kSize; ++k)
      result.values[k] = from_float<T>((values[p][k] - average) * scale * to_float(w.values[k]) +
                                       (bias ? to_float(b.values[k]) : 0.0f));
    store(out + base + column, result);
    if (kept) {
      float normed[kSize];
      for (int k = 0; k < kSize; ++k) normed[k] = (values[p][k] - average) * scale;
      *reinterpret_cast<PackedCodes<kSize>*>(kept + base + column) =
          codes_of<false, kSize>(normed, AsTheyAre());
    }
    if constexpr (kCodes)
      for (int k = 0; k < kSize; ++k) {
        values[p][k] = to_float(result.values[k]);
        largest = fmaxf(largest, fabsf(values[p][k]));
      }
  }
  if constexpr (kCodes) {
    const float step = scale_of(row_max(largest), kMostE4m3);
    if (!inside) return;
    if (threadIdx.x == 0) code_scales[row] = step;
    const DivideBy divide(step);
    for (int p = 0; p < kPacks; ++p) {
      const int column = column_of<T>(p);
      if (column >= shape.dim) continue;
      *reinterpret_cast<PackedCodes<kSize>*>(codes + base + column) =
          codes_of<false, kSize>(values[p], divide);
    }
  }
}

// With kKept the normalised rows are there in 8 bits, instead of x.
template <class T, bool kKept>
__global__ void input_grad_kernel(NormShape shape, const T* grad, const void* x, const float* mean,
                                  const float* rstd, const T* weight, const T* added,
                                  T* input_grad) {
  constexpr int kSize = Pack<T>::kSize;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool inside = row < shape.rows;  // all threads meet in row_sum
  const std::int64_t base = row * shape.dim;
  const float average = !kKept && inside && shape.centred ? mean[row] : 0;
  const float scale = inside ? rstd[row] : 0;
  float normed[kPacks][kSize], slopes[kPacks][kSize];
  Pack<T> more[kPacks];
  float sum = 0, product = 0;
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    const bool real = inside && column < shape.dim;
    Pack<T> g, v, w;
    PackedCodes<kSize> codes;
    if (real) {
      g = load(grad + base + column), w = load(weight + column);
      if constexpr (kKept)
        codes = *reinterpret_cast<const PackedCodes<kSize>*>(static_cast<const unsigned char*>(x) +
                                                             base + column);
      else
        v = load(static_cast<const T*>(x) + base + column);
    }
    if (real && added) more[p] = load(added + base + column);
    for (int k = 0; k < kSize; ++k) {
      if constexpr (kKept)
        normed[p][k] = real ? value_of_e4m3(codes.values[k]) : 0.0f;
      else
        normed[p][k] = real ? (to_float(v.values[k]) - average) * scale : 0.0f;
      slopes[p][k] = real ? to_float(g.values[k]) * to_float(w.values[k]) : 0.0f;
      sum += slopes[p][k];
      product += slopes[p][k] * normed[p][k];
    }
  }
  const float2 sums = row_sum(sum, product);
  const float a = shape.centred ? sums.x / static_cast<float>(shape.dim) : 0.0f;
  const float b = sums.y / static_cast<float>(shape.dim);
  if (!inside) return;
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    if (column >= shape.dim) continue;
    Pack<T> result;
    for (int k = 0; k < kSize; ++k)
      result.values[k] = from_float<T>(scale * (slopes[p][k] - a - normed[p][k] * b) +
                                       (added ? to_float(more[p].values[k]) : 0.0f));
    store(input_grad + base + column, result);
  }
}

struct Launch {
  dim3 blocks, threads;
};

template <class T>
Launch launch_for(const NormShape& shape) {
  const std::int64_t packs = shape.dim / Pack<T>::kSize;
  const auto warps = static_cast<unsigned>((packs + 32 * kPacks - 1) / (32 * kPacks));
  const unsigned rows = warps >= 4 ? 1 : 4 / warps;
  return {dim3(static_cast<unsigned>((shape.rows + rows - 1) / rows)), dim3(32 * warps, rows)};
}

}  // namespace

void launch_layer_norm(Type type, const NormShape& shape, const void* x, const void* added,
                       const void* weight, const void* bias, const void* sum_bias, void* sum,
                       void* out, float* mean, float* rstd, void* codes, float* code_scales,
                       void* kept, cudaStream_t stream) {
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    const Launch launch = launch_for<T>(shape);
    auto* kernel = codes ? &layer_norm_kernel<T, true> : &layer_norm_kernel<T, false>;
    kernel<<<launch.blocks, launch.threads, 0, stream>>>(
        shape, static_cast<const T*>(x), static_cast<const T*>(added),
        static_cast<const T*>(weight), static_cast<const T*>(bias), static_cast<const T*>(sum_bias),
        static_cast<T*>(sum), static_cast<T*>(out), mean, rstd, static_cast<unsigned char*>(codes),
        code_scales, static_cast<unsigned char*>(kept));
  });
}

void launch_layer_norm_backward(Type type, const NormShape& shape, const void* grad, const void* x,
                                const float* mean, const float* rstd, const void* weight,
                                const void* added, void* input_grad, bool kept,
                                cudaStream_t stream) {
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    const Launch launch = launch_for<T>(shape);
    auto* kernel = kept ? &input_grad_kernel<T, true> : &input_grad_kernel<T, false>;
    kernel<<<launch.blocks, launch.threads, 0, stream>>>(
        shape, static_cast<const T*>(grad), x, mean, rstd, static_cast<const T*>(weight),
        static_cast<const T*>(added), static_cast<T*>(input_grad));
  });
}

}  // namespace floe::kernels
