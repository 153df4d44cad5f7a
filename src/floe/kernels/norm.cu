#include <type_traits>

#include "floe/kernels/dispatch.cuh"
#include "floe/kernels/eight_bit/codes.cuh"
#include "floe/kernels/launch.h"
#include "floe/kernels/pack.cuh"

namespace floe::kernels {
namespace {

// A row belongs to blockDim.x threads, each of which keeps up to kPacks packs of it in registers,
// as they are stored; a block has blockDim.y rows. It has no more threads than can have 128
// registers each, which is what the compiler gives those with four packs: with more the kernel
// would not start.
constexpr int kMostPacks = 4;  // of a thread
constexpr int kMaxWarps = kMostNormPacks / (32 * kMostPacks);
static_assert(32 * kMaxWarps * 128 <= 65536);

// The first column of a thread's pack p.
template <class T>
__device__ int column_of(int p) {
  return (p * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * Pack<T>::kSize;
}

// Where the parts of this row's warps begin.
__device__ int first_part() { return static_cast<int>(threadIdx.y * (blockDim.x / 32)); }

// Sums of two numbers over the threads of a row; once a kernel.
__device__ float2 row_sum(float a, float b) {
  a = warp_sum(a), b = warp_sum(b);
  if (blockDim.x == 32) return {a, b};
  __shared__ float2 parts[kMaxWarps];
  const int warps = static_cast<int>(blockDim.x) / 32, first = first_part();
  if (threadIdx.x % 32 == 0) parts[first + threadIdx.x / 32] = {a, b};
  __syncthreads();
  float2 sums{0, 0};
  for (int w = 0; w < warps; ++w) sums.x += parts[first + w].x, sums.y += parts[first + w].y;
  return sums;
}

struct Moments {
  float mean, squares;  // the sum of the squared distances from it
};
// Of a row, from what a thread knows: the sum of its values, the sum of their squared distances
// from a number, and how many its warp has. Warps are put together by their own means, so that
// nothing large cancels, at one meeting of all threads; once a kernel.
template <class SquaresFrom>
__device__ Moments row_moments(float sum, const SquaresFrom& squares_from, int num_of_warp,
                               std::int64_t dim) {
  sum = warp_sum(sum);
  const auto count = static_cast<float>(num_of_warp);
  const float mean = num_of_warp > 0 ? sum / count : 0.0f;
  const float squares = warp_sum(squares_from(mean));
  if (blockDim.x == 32) return {mean, squares};
  __shared__ float3 parts[kMaxWarps];  // mean, squares, count
  const int warps = static_cast<int>(blockDim.x) / 32, first = first_part();
  if (threadIdx.x % 32 == 0) parts[first + threadIdx.x / 32] = {mean, squares, count};
  __syncthreads();
  Moments row{0, 0};
  for (int w = 0; w < warps; ++w) row.mean += parts[first + w].x * parts[first + w].z;
  row.mean /= static_cast<float>(dim);
  for (int w = 0; w < warps; ++w) {
    const float3 part = parts[first + w];
    row.squares += part.y + part.z * (part.x - row.mean) * (part.x - row.mean);
  }
  return row;
}

// The largest of a number over the threads of a row.
__device__ float row_max(float a) {
  for (int distance = 16; distance > 0; distance /= 2)
    a = fmaxf(a, __shfl_xor_sync(0xffffffffU, a, distance));
  if (blockDim.x == 32) return a;
  __shared__ float parts[kMaxWarps];
  const int warps = static_cast<int>(blockDim.x) / 32, first = first_part();
  if (threadIdx.x % 32 == 0) parts[first + threadIdx.x / 32] = a;
  __syncthreads();
  for (int w = 0; w < warps; ++w) a = fmaxf(a, parts[first + w]);
  return a;
}

template <class T>
__device__ Pack<T> zeros() {
  Pack<T> pack;
  for (T& value : pack.values) value = from_float<T>(0);
  return pack;
}

// With kCodes also `out` in e4m3 with a scale per row, as launch_coded_rows would make it of `out`.
// Where `kept` is wanted: see Note [Normalised rows in 8 bits].
template <class T, int kPacks, bool kCodes>
__global__ void layer_norm_kernel(NormShape shape, const T* x, const T* added,
                                  const T* __restrict__ weight, const T* __restrict__ bias,
                                  const T* __restrict__ sum_bias, T* __restrict__ sum,
                                  T* __restrict__ out, float* __restrict__ mean,
                                  float* __restrict__ rstd, unsigned char* __restrict__ codes,
                                  float* __restrict__ code_scales,
                                  unsigned char* __restrict__ kept) {
  constexpr int kSize = Pack<T>::kSize;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool inside = row < shape.rows;  // all threads meet in row_moments
  const std::int64_t base = row * shape.dim;
  // All loads before the first store, which the compiler could not move them across.
  Pack<T> packs[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    packs[p] = inside && column < shape.dim ? load(x + base + column) : zeros<T>();
  }
  if (added) {
    Pack<T> more[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = column_of<T>(p);
      more[p] = inside && column < shape.dim ? load(added + base + column) : zeros<T>();
    }
    // Rounded as if the sum had been written and read again: backward sees the same numbers.
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int k = 0; k < kSize; ++k)
        packs[p].values[k] =
            from_float<T>(to_float(packs[p].values[k]) + to_float(more[p].values[k]));
  }
  float total = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
#pragma unroll
    for (int k = 0; k < kSize; ++k) total += to_float(packs[p].values[k]);
  if (sum) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = column_of<T>(p);
      if (!inside || column >= shape.dim) continue;
      Pack<T> result = packs[p];
      if (sum_bias) {
        const Pack<T> extra = load(sum_bias + column);
#pragma unroll
        for (int k = 0; k < kSize; ++k)
          result.values[k] = from_float<T>(to_float(result.values[k]) + to_float(extra.values[k]));
      }
      store(sum + base + column, result);
    }
  }
  const auto squares_from = [&](float centre) {
    float squares = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column_of<T>(p) >= shape.dim) continue;
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        const float away = to_float(packs[p].values[k]) - centre;
        squares += away * away;
      }
    }
    return squares;
  };
  Moments moments{0, 0};
  if (shape.centred) {
    int num_of_warp = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int lanes = static_cast<int>(shape.dim) / kSize - p * static_cast<int>(blockDim.x) -
                        static_cast<int>(threadIdx.x) / 32 * 32;
      num_of_warp += kSize * min(max(lanes, 0), 32);
    }
    moments = row_moments(total, squares_from, num_of_warp, shape.dim);
  } else {
    moments.squares = row_sum(squares_from(0), 0).x;
  }
  const float average = moments.mean;
  const float scale = rsqrtf(moments.squares / static_cast<float>(shape.dim) + shape.eps);
  if (!kCodes && !inside) return;  // else all threads meet in row_max
  if (inside && threadIdx.x == 0 && mean) mean[row] = average;
  if (inside && threadIdx.x == 0 && rstd) rstd[row] = scale;
  float largest = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    if (!inside || column >= shape.dim) continue;
    const Pack<T> w = load(weight + column);
    Pack<T> b;
    if (bias) b = load(bias + column);
    float normed[kSize];
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      normed[k] = (to_float(packs[p].values[k]) - average) * scale;
      packs[p].values[k] =
          from_float<T>(normed[k] * to_float(w.values[k]) + (bias ? to_float(b.values[k]) : 0.0f));
      if constexpr (kCodes) largest = fmaxf(largest, fabsf(to_float(packs[p].values[k])));
    }
    store(out + base + column, packs[p]);
    if (kept)
      *reinterpret_cast<PackedCodes<kSize>*>(kept + base + column) =
          codes_of<false, kSize>(normed, AsTheyAre());
  }
  if constexpr (kCodes) {
    const float step = scale_of(row_max(largest), kMostE4m3);
    if (!inside) return;
    if (threadIdx.x == 0) code_scales[row] = step;
    const DivideBy divide(step);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = column_of<T>(p);
      if (column >= shape.dim) continue;
      float values[kSize];
#pragma unroll
      for (int k = 0; k < kSize; ++k) values[k] = to_float(packs[p].values[k]);
      *reinterpret_cast<PackedCodes<kSize>*>(codes + base + column) =
          codes_of<false, kSize>(values, divide);
    }
  }
}

// With kKept the normalised rows are there in 8 bits, instead of x.
template <class T, int kPacks, bool kKept>
__global__ void input_grad_kernel(NormShape shape, const T* grad, const void* x, const float* mean,
                                  const float* rstd, const T* __restrict__ weight, const T* added,
                                  T* __restrict__ input_grad) {
  constexpr int kSize = Pack<T>::kSize;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool inside = row < shape.rows;  // all threads meet in row_sum
  const std::int64_t base = row * shape.dim;
  Pack<T> slopes[kPacks], values[kKept ? 1 : kPacks], more[kPacks];
  PackedCodes<kSize> codes[kKept ? kPacks : 1];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    if (!inside || column >= shape.dim) continue;
    slopes[p] = load(grad + base + column);
    if constexpr (kKept)
      codes[p] = *reinterpret_cast<const PackedCodes<kSize>*>(static_cast<const unsigned char*>(x) +
                                                              base + column);
    else
      values[p] = load(static_cast<const T*>(x) + base + column);
    if (added) more[p] = load(added + base + column);
  }
  const float average = !kKept && inside && shape.centred ? mean[row] : 0;
  const float scale = inside ? rstd[row] : 0;
  // What is summed is made again for the result, instead of being kept in registers.
  const auto each = [&](int p, int column, const auto& body) {
    const Pack<T> w = load(weight + column);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      float normed;
      if constexpr (kKept)
        normed = value_of_e4m3(codes[p].values[k]);
      else
        normed = (to_float(values[p].values[k]) - average) * scale;
      body(k, to_float(slopes[p].values[k]) * to_float(w.values[k]), normed);
    }
  };
  float sum = 0, product = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    if (!inside || column >= shape.dim) continue;
    each(p, column, [&](int, float slope, float normed) {
      sum += slope;
      product += slope * normed;
    });
  }
  const float2 sums = row_sum(sum, product);
  const float a = shape.centred ? sums.x / static_cast<float>(shape.dim) : 0.0f;
  const float b = sums.y / static_cast<float>(shape.dim);
  if (!inside) return;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = column_of<T>(p);
    if (column >= shape.dim) continue;
    Pack<T> result;
    each(p, column, [&](int k, float slope, float normed) {
      result.values[k] = from_float<T>(scale * (slope - a - normed * b) +
                                       (added ? to_float(more[p].values[k]) : 0.0f));
    });
    store(input_grad + base + column, result);
  }
}

struct Launch {
  dim3 blocks, threads;
};
template <class T>
Launch launch_for(const NormShape& shape, int packs) {
  const std::int64_t of_row = shape.dim / Pack<T>::kSize;
  const auto warps = static_cast<unsigned>((of_row + 32 * packs - 1) / (32 * packs));
  const unsigned rows = warps >= 4 ? 1 : 4 / warps;
  return {dim3(static_cast<unsigned>((shape.rows + rows - 1) / rows)), dim3(32 * warps, rows)};
}

// Up to which number of packs of a row a thread has one, and two; else four.
struct Shares {
  std::int64_t one, two;
};
// Measured on an H200 with rows of 1,024 to 4,096 values in bf16: more of a row in one thread means
// fewer meetings, less of it more threads that load.
constexpr Shares kAlone{32, 64}, kWithAdded{64, 320}, kBackward{320, 640};

// Calls body with the number of packs that a thread has.
template <class T, class Body>
void with_packs(const NormShape& shape, const Shares& shares, const Body& body) {
  const std::int64_t of_row = shape.dim / Pack<T>::kSize;
  if (of_row <= shares.one) return body(std::integral_constant<int, 1>{});
  if (of_row <= shares.two) return body(std::integral_constant<int, 2>{});
  body(std::integral_constant<int, kMostPacks>{});
}

}  // namespace

void launch_layer_norm(Type type, const NormShape& shape, const void* x, const void* added,
                       const void* weight, const void* bias, const void* sum_bias, void* sum,
                       void* out, float* mean, float* rstd, void* codes, float* code_scales,
                       void* kept, cudaStream_t stream) {
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    with_packs<T>(shape, added ? kWithAdded : kAlone, [&](auto packs) {
      const Launch launch = launch_for<T>(shape, packs);
      auto* kernel =
          codes ? &layer_norm_kernel<T, packs, true> : &layer_norm_kernel<T, packs, false>;
      kernel<<<launch.blocks, launch.threads, 0, stream>>>(
          shape, static_cast<const T*>(x), static_cast<const T*>(added),
          static_cast<const T*>(weight), static_cast<const T*>(bias),
          static_cast<const T*>(sum_bias), static_cast<T*>(sum), static_cast<T*>(out), mean, rstd,
          static_cast<unsigned char*>(codes), code_scales, static_cast<unsigned char*>(kept));
    });
  });
}

void launch_layer_norm_backward(Type type, const NormShape& shape, const void* grad, const void* x,
                                const float* mean, const float* rstd, const void* weight,
                                const void* added, void* input_grad, bool kept,
                                cudaStream_t stream) {
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    with_packs<T>(shape, kBackward, [&](auto packs) {
      const Launch launch = launch_for<T>(shape, packs);
      auto* kernel =
          kept ? &input_grad_kernel<T, packs, true> : &input_grad_kernel<T, packs, false>;
      kernel<<<launch.blocks, launch.threads, 0, stream>>>(
          shape, static_cast<const T*>(grad), x, mean, rstd, static_cast<const T*>(weight),
          static_cast<const T*>(added), static_cast<T*>(input_grad));
    });
  });
}

}  // namespace floe::kernels
