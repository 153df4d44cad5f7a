// Values of matrices that are stored in 8 bits with one scale per row. See Note [Eight bits].
#include "floe/kernels/dispatch.cuh"
#include "floe/kernels/eight_bit/codes.cuh"
#include "floe/kernels/eight_bit/eight_bit_launch.h"
#include "floe/kernels/pack.cuh"

namespace floe::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kCodes = 16;  // of one thread: one load of 16 bytes

template <bool kFloats>
__device__ float value_of(unsigned char code) {
  return kFloats ? value_of_e4m3(code) : static_cast<float>(static_cast<signed char>(code));
}

// The last of the job's matrices that begins at the element or before it; the first, if none does.
__device__ int matrix_of(const EightBitJob& job, std::int64_t element) {
  int low = 0, high = job.num_matrices;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (job.offsets[middle] <= element)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// a / b, in 32 bits where that is enough: much faster.
__device__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<unsigned>(a) / static_cast<unsigned>(b);
  return a / b;
}

struct RowPlace {
  std::int64_t left;   // elements of the row from here on
  std::int64_t scale;  // the row's place among the scales
};
__device__ RowPlace row_at(const EightBitJob& job, std::int64_t element) {
  const int m = matrix_of(job, element);
  const std::int64_t inside = element - job.offsets[m];
  const std::int64_t row = quotient(inside, job.row_numels[m]);
  const std::int64_t place = job.rows_before[m] + row;
  return {(row + 1) * job.row_numels[m] - inside,
          place - quotient(place, job.num_scales) * job.num_scales};
}

template <class T, bool kFloats>
__global__ void values_kernel(const __grid_constant__ EightBitJob job, const unsigned char* from,
                              T* to, std::int64_t first_pack, std::int64_t num_packs) {
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pack >= num_packs) return;
  const std::int64_t element = (first_pack + pack) * kCodes;
  const std::int64_t slice = quotient(element, job.slice_numel);
  const unsigned char* start = from + slice * job.slice_bytes;
  const auto* scales = reinterpret_cast<const float*>(start + job.slice_numel);
  const Pack<unsigned char> codes = load(start + (element - slice * job.slice_numel));

  if (element >= job.offsets[0] && element + kCodes <= job.end) {
    const RowPlace row = row_at(job, element);
    if (row.left >= kCodes) {
      const float scale = scales[row.scale];
      constexpr int kSize = Pack<T>::kSize;
#pragma unroll
      for (int k = 0; k < kCodes; k += kSize) {
        Pack<T> values;
#pragma unroll
        for (int i = 0; i < kSize; ++i)
          values.values[i] = from_float<T>(value_of<kFloats>(codes.values[k + i]) * scale);
        store(to + element + k, values);
      }
      return;
    }
  }
  // Rows end inside, or the job does: element by element.
#pragma unroll
  for (int k = 0; k < kCodes; ++k)
    if (element + k >= job.offsets[0] && element + k < job.end)
      to[element + k] = from_float<T>(value_of<kFloats>(codes.values[k]) *
                                      scales[row_at(job, element + k).scale]);
}

}  // namespace

void launch_from_eight_bit(Type type, const EightBitJob& job, const void* from, void* to,
                           cudaStream_t stream) {
  const std::int64_t first_pack = job.offsets[0] / kCodes;
  const std::int64_t num_packs = (job.end + kCodes - 1) / kCodes - first_pack;
  if (num_packs <= 0) return;
  const auto blocks = static_cast<unsigned>((num_packs + kThreads - 1) / kThreads);
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    auto* kernel = job.floats ? &values_kernel<T, true> : &values_kernel<T, false>;
    kernel<<<blocks, kThreads, 0, stream>>>(job, static_cast<const unsigned char*>(from),
                                            static_cast<T*>(to), first_pack, num_packs);
  });
}

}  // namespace floe::kernels
