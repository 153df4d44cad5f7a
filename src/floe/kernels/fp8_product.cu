// Rows of activations in 8 bits, scales and transposed codes of gathered matrices. See Note [FP8
// products].
#include <cuda_fp8.h>

#include <cfloat>

#include "floe/kernels/dispatch.cuh"
#include "floe/kernels/fp8_product_launch.h"
#include "floe/kernels/pack.cuh"

namespace floe::kernels {
namespace {

constexpr int kWarp = 32;
constexpr int kCodes = 16;  // of one thread at a time: one store of 16 bytes

__device__ float warp_max(float x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, distance));
  return x;
}

// The next 16 values of a row; with kQuickGelu x · sigmoid(1.702 x) of them, rounded to T as if it
// had been written and read again.
template <class T, bool kQuickGelu>
struct Values {
  float values[kCodes];

  __device__ Values(const T* x, const float* factors, std::int64_t column) {
    constexpr int kSize = Pack<T>::kSize;
#pragma unroll
    for (int k = 0; k < kCodes; k += kSize) {
      const Pack<T> pack = load(x + column + k);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const float value = to_float(pack.values[i]);
        values[k + i] =
            kQuickGelu ? to_float(from_float<T>(value / (1.0f + __expf(-1.702f * value)))) : value;
      }
    }
    if (!factors) return;
#pragma unroll
    for (int k = 0; k < kCodes; k += Pack<float>::kSize) {
      const Pack<float> pack = load(factors + column + k);
#pragma unroll
      for (int i = 0; i < Pack<float>::kSize; ++i)
        values[k + i] = __fmul_rn(values[k + i], pack.values[i]);
    }
  }
};

// One block per row, which is read twice: the second time it comes from the cache. A NaN has no
// part in the maximum, but becomes the code that is one.
template <class T, int kThreads, bool kWide, bool kQuickGelu>
__global__ void __launch_bounds__(kThreads)
    coded_rows_kernel(const T* x, const float* factors, unsigned char* codes, float* scales,
                      std::int64_t columns) {
  const std::int64_t row = blockIdx.x;
  x += row * columns;
  codes += row * columns;
  float largest = 0;
  for (std::int64_t column = threadIdx.x * kCodes; column < columns; column += kThreads * kCodes) {
    const Values<T, kQuickGelu> packed(x, factors, column);
#pragma unroll
    for (int k = 0; k < kCodes; ++k) largest = fmaxf(largest, fabsf(packed.values[k]));
  }
  largest = warp_max(largest);
  if constexpr (kThreads > kWarp) {
    __shared__ float of_warps[kThreads / kWarp];
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = largest;
    __syncthreads();
    largest = of_warps[0];
#pragma unroll
    for (int warp = 1; warp < kThreads / kWarp; ++warp) largest = fmaxf(largest, of_warps[warp]);
  }
  // As to_eight_bit does it, bit for bit: true divisions, and no scale that is subnormal.
  constexpr float kMost = kWide ? 57344.0f : 448.0f;
  const float scale = fmaxf(__fdiv_rn(largest, kMost), FLT_MIN);
  if (threadIdx.x == 0) scales[row] = scale;
  for (std::int64_t column = threadIdx.x * kCodes; column < columns; column += kThreads * kCodes) {
    const Values<T, kQuickGelu> packed(x, factors, column);
    Pack<unsigned char> out;
#pragma unroll
    for (int k = 0; k < kCodes; ++k)
      out.values[k] = __nv_cvt_float_to_fp8(__fdiv_rn(packed.values[k], scale), __NV_SATFINITE,
                                            kWide ? __NV_E5M2 : __NV_E4M3);
    store(codes + column, out);
  }
}

template <class T, int kThreads>
void launch_coded_rows_by(const CodedShape& shape, const T* x, const float* factors,
                          unsigned char* codes, float* scales, cudaStream_t stream) {
  auto* kernel = shape.quick_gelu      ? &coded_rows_kernel<T, kThreads, false, true>
                 : shape.wide_exponent ? &coded_rows_kernel<T, kThreads, true, false>
                                       : &coded_rows_kernel<T, kThreads, false, false>;
  kernel<<<static_cast<unsigned>(shape.rows), kThreads, 0, stream>>>(x, factors, codes, scales,
                                                                     shape.columns);
}

// The scale of a row stands in every slice that has a part of it; this takes the first.
__global__ void row_scales_kernel(const __grid_constant__ EightBitJob job, std::int64_t end_row,
                                  const unsigned char* slices, float* scales) {
  const std::int64_t row =
      job.rows_before[0] + static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= end_row) return;
  int low = 0, high = job.num_matrices;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (job.rows_before[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  const std::int64_t element =
      job.offsets[low] + (row - job.rows_before[low]) * job.row_numels[low];
  const unsigned char* slice = slices + element / job.slice_numel * job.slice_bytes;
  scales[row] = reinterpret_cast<const float*>(slice + job.slice_numel)[row % job.num_scales];
}

constexpr int kTile = 64;                             // bytes on each side
constexpr int kTileThreads = kTile * kTile / kCodes;  // 16 bytes each

// A tile goes through shared memory; its rows are 4 bytes apart from a multiple of the banks.
__global__ void __launch_bounds__(kTileThreads)
    transpose_kernel(const unsigned char* matrix, unsigned char* out, std::int64_t rows,
                     std::int64_t columns) {
  __shared__ unsigned char tile[kTile][kTile + 4];
  const int line = threadIdx.x / (kTile / kCodes), place = threadIdx.x % (kTile / kCodes) * kCodes;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  if (first_row + line < rows && first_column + place < columns) {
    const auto pack = load(matrix + (first_row + line) * columns + first_column + place);
#pragma unroll
    for (int i = 0; i < kCodes; ++i) tile[line][place + i] = pack.values[i];
  }
  __syncthreads();
  if (first_column + line >= columns || first_row + place >= rows) return;
  Pack<unsigned char> pack;
#pragma unroll
  for (int i = 0; i < kCodes; ++i) pack.values[i] = tile[place + i][line];
  store(out + (first_column + line) * rows + first_row + place, pack);
}

}  // namespace

void launch_coded_rows(Type type, const CodedShape& shape, const void* x, const float* factors,
                       void* codes, float* scales, cudaStream_t stream) {
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    const auto* values = static_cast<const T*>(x);
    auto* bytes = static_cast<unsigned char*>(codes);
    if (shape.columns <= 1024)
      launch_coded_rows_by<T, 64>(shape, values, factors, bytes, scales, stream);
    else
      launch_coded_rows_by<T, 256>(shape, values, factors, bytes, scales, stream);
  });
}

void launch_row_scales(const EightBitJob& job, std::int64_t end_row, const void* slices,
                       float* scales, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const std::int64_t rows = end_row - job.rows_before[0];
  if (rows <= 0) return;
  const auto blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  row_scales_kernel<<<blocks, kThreads, 0, stream>>>(
      job, end_row, static_cast<const unsigned char*>(slices), scales);
}

void launch_transpose_bytes(const void* matrix, void* out, std::int64_t rows, std::int64_t columns,
                            cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((columns + kTile - 1) / kTile),
                  static_cast<unsigned>((rows + kTile - 1) / kTile));
  transpose_kernel<<<grid, kTileThreads, 0, stream>>>(
      static_cast<const unsigned char*>(matrix), static_cast<unsigned char*>(out), rows, columns);
}

}  // namespace floe::kernels
