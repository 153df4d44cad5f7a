// Rows of activations in 8 bits, scales and transposed codes of gathered matrices. See Note [FP8
// products].
#include <algorithm>

#include "floe/kernels/dispatch.cuh"
#include "floe/kernels/eight_bit/codes.cuh"
#include "floe/kernels/eight_bit/fp8_product_launch.h"
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

// Sixteen values of a row, as they are stored.
template <class T>
struct Values {
  static constexpr int kSize = Pack<T>::kSize;
  Pack<T> packs[kCodes / kSize];

  Values() = default;
  // With the step done, rounded to T as if it had been written and read again.
  template <CodedStep kStep>
  __device__ void read(const T* from, unsigned char* slopes) {
    Pack<unsigned char> bytes;
    if constexpr (kStep == CodedStep::gelu_slopes) bytes = load<unsigned char>(slopes);
#pragma unroll
    for (int p = 0; p < kCodes / kSize; ++p) {
      packs[p] = load(from + p * kSize);
      if constexpr (kStep != CodedStep::none) {
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          const float value = to_float(packs[p].values[i]);
          unsigned char& byte = bytes.values[p * kSize + i];
          float stepped;
          if constexpr (kStep == CodedStep::quick_gelu) {
            stepped = quick_gelu_at(value);
          } else if constexpr (kStep == CodedStep::gelu) {
            const Gelu at = gelu_at(value, T{});
            stepped = at.value;
            byte = static_cast<unsigned char>(__float2int_rn(at.slope * kSlopeSteps) + kSlopeZero);
          } else {
            stepped = value * ((static_cast<float>(byte) - kSlopeZero) * (1.0f / kSlopeSteps));
          }
          packs[p].values[i] = from_float<T>(stepped);
        }
      }
    }
    if constexpr (kStep == CodedStep::gelu)
      if (slopes) store(slopes, bytes);
  }
  __device__ float operator[](int k) const { return to_float(packs[k / kSize].values[k % kSize]); }
};

template <int kThreads>
__device__ float block_max(float largest) {
  largest = warp_max(largest);
  if constexpr (kThreads > kWarp) {
    __shared__ float of_warps[kThreads / kWarp];
    __syncthreads();  // the row before has been read
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = largest;
    __syncthreads();
    largest = of_warps[0];
#pragma unroll
    for (int warp = 1; warp < kThreads / kWarp; ++warp) largest = fmaxf(largest, of_warps[warp]);
  }
  return largest;
}

// A block takes row after row; kChunks times 16 values of a thread stay in registers from the
// search for the largest to the codes. What a long row has beyond them is read twice. A NaN has no
// part in the maximum, but becomes the code that is one.
template <class T, int kThreads, int kChunks, bool kWide, CodedStep kStep, bool kFactors>
__global__ void __launch_bounds__(kThreads)
    coded_rows_kernel(const T* x, const float* factors, unsigned char* slopes, unsigned char* codes,
                      float* scales, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kStride = std::int64_t{kThreads} * kCodes;
  const std::int64_t first = std::int64_t{threadIdx.x} * kCodes;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * columns;
    const auto slopes_at = [&](std::int64_t column) {
      return slopes ? slopes + row * columns + column : nullptr;
    };
    Values<T> held[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      if (const std::int64_t column = first + c * kStride; column < columns)
        held[c].template read<kStep>(from + column, slopes_at(column));
    // Calls with the column and the 16 products there, of all that this thread has.
    const auto each = [&](const auto& use) {
      float products[kCodes];
      const auto multiply = [&](const Values<T>& values, std::int64_t column) {
#pragma unroll
        for (int k = 0; k < kCodes; ++k) products[k] = values[k];
        if constexpr (kFactors) {
#pragma unroll
          for (int k = 0; k < kCodes; k += Pack<float>::kSize) {
            const Pack<float> pack = load(factors + column + k);
#pragma unroll
            for (int i = 0; i < Pack<float>::kSize; ++i)
              products[k + i] = __fmul_rn(products[k + i], pack.values[i]);
          }
        }
        use(column, products);
      };
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        if (first + c * kStride < columns) multiply(held[c], first + c * kStride);
      for (std::int64_t column = first + kChunks * kStride; column < columns; column += kStride) {
        Values<T> beyond;
        beyond.template read<kStep>(from + column, slopes_at(column));
        multiply(beyond, column);
      }
    };

    float largest = 0;
    each([&](std::int64_t, const float* products) {
#pragma unroll
      for (int k = 0; k < kCodes; ++k) largest = fmaxf(largest, fabsf(products[k]));
    });
    const float scale = scale_of(block_max<kThreads>(largest), kWide ? kMostE5m2 : kMostE4m3);
    if (threadIdx.x == 0) scales[row] = scale;
    const DivideBy divide(scale);
    each([&](std::int64_t column, const float* products) {
      *reinterpret_cast<PackedCodes<kCodes>*>(codes + row * columns + column) =
          codes_of<kWide, kCodes>(products, divide);
    });
  }
}

// Enough to fill a GPU; each takes several rows, so that their factors are in its cache.
constexpr std::int64_t kMostBlocks = 1056;

template <class T, int kThreads, int kChunks>
void launch_coded_rows_by(const CodedShape& shape, const T* x, const float* factors,
                          unsigned char* slopes, unsigned char* codes, float* scales,
                          cudaStream_t stream) {
  using enum CodedStep;
  auto* kernel = &coded_rows_kernel<T, kThreads, kChunks, false, none, false>;
  if (shape.step == quick_gelu)
    kernel = &coded_rows_kernel<T, kThreads, kChunks, false, quick_gelu, false>;
  if (shape.step == gelu) kernel = &coded_rows_kernel<T, kThreads, kChunks, false, gelu, false>;
  if (shape.step == gelu_slopes)
    kernel = &coded_rows_kernel<T, kThreads, kChunks, false, gelu_slopes, true>;
  if (shape.step == none) {
    if (shape.wide_exponent)
      kernel = factors ? &coded_rows_kernel<T, kThreads, kChunks, true, none, true>
                       : &coded_rows_kernel<T, kThreads, kChunks, true, none, false>;
    else if (factors)
      kernel = &coded_rows_kernel<T, kThreads, kChunks, false, none, true>;
  }
  const auto blocks = factors ? std::min(shape.rows, kMostBlocks) : shape.rows;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, factors, slopes, codes, scales,
                                                                 shape.rows, shape.columns);
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
                       void* slopes, void* codes, float* scales, cudaStream_t stream) {
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    const auto* values = static_cast<const T*>(x);
    auto *bytes = static_cast<unsigned char*>(codes), *steep = static_cast<unsigned char*>(slopes);
    if (shape.columns <= 64 * kCodes)
      launch_coded_rows_by<T, 64, 1>(shape, values, factors, steep, bytes, scales, stream);
    else if (shape.columns <= 256 * kCodes)
      launch_coded_rows_by<T, 256, 1>(shape, values, factors, steep, bytes, scales, stream);
    else
      launch_coded_rows_by<T, 256, 4>(shape, values, factors, steep, bytes, scales, stream);
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
