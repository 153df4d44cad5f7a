#include "floe/kernels/eight_bit/eight_bit.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#ifdef FLOE_CUDA
#include "floe/kernels/on_device.h"
#endif

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/kernels/kernels.h"
#include "floe/kernels/rehearsal.h"

namespace floe::kernels {

EightBitSlices::EightBitSlices(const std::vector<std::pair<std::int64_t, std::int64_t>>& shapes,
                               std::int64_t slice_elements, int slices)
    : slice_numel(slice_elements), num_slices(slices) {
  for (const auto& [rows, row_numel] : shapes) {
    matrices.push_back({numel, num_rows, row_numel});
    numel += rows * row_numel;
    num_rows += rows;
  }
  for (std::int64_t slice = 0; slice < num_slices; ++slice)
    num_scales = std::max(num_scales, rows_of(slice).count);
}

std::int64_t EightBitSlices::slice_bytes() const {
  const auto scale_bytes = static_cast<std::int64_t>(sizeof(float));
  return slice_numel + round_up(num_scales * scale_bytes, kAlignment);
}

const EightBitMatrix& EightBitSlices::matrix_of(std::int64_t row) const {
  return *std::prev(std::upper_bound(
      matrices.begin(), matrices.end(), row,
      [](std::int64_t value, const EightBitMatrix& matrix) { return value < matrix.rows_before; }));
}

std::int64_t EightBitSlices::row_of(std::int64_t element) const {
  const auto after = std::upper_bound(
      matrices.begin(), matrices.end(), element,
      [](std::int64_t value, const EightBitMatrix& matrix) { return value < matrix.offset; });
  const EightBitMatrix& matrix = *std::prev(after);
  return matrix.rows_before + (element - matrix.offset) / matrix.row_numel;
}

EightBitSlices::Rows EightBitSlices::rows_of(std::int64_t slice) const {
  const std::int64_t begin = slice * slice_numel;
  const std::int64_t end = std::min(begin + slice_numel, numel);
  if (begin >= end) return {};
  const std::int64_t first = row_of(begin);
  return {first, row_of(end - 1) - first + 1};
}

at::Tensor EightBitSlices::codes(const at::Tensor& slice) const {
  return slice.narrow(0, 0, slice_numel);
}

at::Tensor EightBitSlices::scales(const at::Tensor& slice) const {
  return slice.narrow(0, slice_numel, slice_bytes() - slice_numel)
      .view(at::kFloat)
      .narrow(0, 0, num_scales);
}

at::Tensor EightBitSlices::all_codes(const at::Tensor& slices) const {
  return slices.view({num_slices, slice_bytes()}).narrow(1, 0, slice_numel).reshape({-1});
}

at::Tensor EightBitSlices::all_scales(const at::Tensor& slices) const {
  at::Tensor all = at::empty({num_rows}, slices.options().dtype(at::kFloat));
  for (std::int64_t slice = 0; slice < num_slices; ++slice) {
    const at::Tensor own = scales(slices.narrow(0, slice * slice_bytes(), slice_bytes()));
    const auto [first, count] = rows_of(slice);
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t place = (first + done) % num_scales;
      const std::int64_t run = std::min(count - done, num_scales - place);
      all.narrow(0, first + done, run).copy_(own.narrow(0, place, run));
      done += run;
    }
  }
  return all;
}

void EightBitSlices::put_scales(const at::Tensor& slice, std::int64_t first,
                                const at::Tensor& values) const {
  const at::Tensor own = scales(slice);
  for (std::int64_t done = 0; done < values.numel();) {
    const std::int64_t place = (first + done) % num_scales;
    const std::int64_t run = std::min(values.numel() - done, num_scales - place);
    own.narrow(0, place, run).copy_(values.narrow(0, done, run));
    done += run;
  }
}

bool is_eight_bit(at::ScalarType dtype) {
  return dtype == at::kChar || dtype == at::kFloat8_e4m3fn;
}

EightBitRows to_eight_bit(const at::Tensor& values, at::ScalarType dtype) {
  const double most = dtype == at::kChar ? 127 : dtype == at::kFloat8_e5m2 ? 57344 : 448;
  const auto [low, high] = at::aminmax(values, /*dim=*/1);
  // A tensor: on a GPU torch divides by a plain number through its reciprocal, which rounds twice.
  const at::Tensor largest = at::full({}, most, values.options());
  EightBitRows rows;
  // No smaller than the smallest normal number: a row of zeros has codes of zero, and nothing
  // depends on how a device treats subnormal ones.
  rows.scales = (at::maximum(-low, high) / largest).clamp_min_(std::numeric_limits<float>::min());
  const at::Tensor scaled = values / rows.scales.unsqueeze(1);
  if (dtype == at::kChar) scaled.round_();
  rows.codes = scaled.clamp_(-most, most).to(dtype).view(at::kByte);
  return rows;
}

namespace {

// What each code of fp8 means.
const std::array<float, 256>& fp8_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (int bits = 0; bits < 256; ++bits)
      table[static_cast<std::size_t>(bits)] = static_cast<float>(
          c10::Float8_e4m3fn(static_cast<std::uint8_t>(bits), c10::Float8_e4m3fn::from_bits()));
    return table;
  }();
  return values;
}

template <class T, class Value>
void values_on_cpu(const EightBitSlices& layout, const at::Tensor& slices, const at::Tensor& out,
                   const Value& value) {
  const auto* from = slices.const_data_ptr<std::uint8_t>();
  T* to = out.mutable_data_ptr<T>();
  constexpr std::int64_t kGrain = 1 << 16;
  at::parallel_for(0, layout.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t element = begin; element < end;) {
      const std::int64_t slice = element / layout.slice_numel;
      const std::int64_t row = layout.row_of(element);
      const EightBitMatrix& matrix = layout.matrix_of(row);
      const std::int64_t row_end =
          matrix.offset + (row - matrix.rows_before + 1) * matrix.row_numel;
      const std::int64_t run_end = std::min({row_end, (slice + 1) * layout.slice_numel, end});
      const auto* start = from + slice * layout.slice_bytes();
      const auto* codes = start + (element - slice * layout.slice_numel);
      const float scale =
          reinterpret_cast<const float*>(start + layout.slice_numel)[row % layout.num_scales];
      for (std::int64_t i = 0; i < run_end - element; ++i)
        to[element + i] = static_cast<T>(value(codes[i]) * scale);
      element = run_end;
    }
  });
}

template <class T>
void values_on_cpu(const EightBitSlices& layout, at::ScalarType dtype, const at::Tensor& slices,
                   const at::Tensor& out) {
  if (dtype == at::kChar)
    values_on_cpu<T>(layout, slices, out, [](std::uint8_t code) {
      return static_cast<float>(static_cast<std::int8_t>(code));
    });
  else
    values_on_cpu<T>(layout, slices, out,
                     [&table = fp8_values()](std::uint8_t code) { return table[code]; });
}

#ifdef FLOE_CUDA
}  // namespace

EightBitJob job_of(const EightBitSlices& layout, at::ScalarType dtype, std::int64_t first) {
  EightBitJob job;
  const auto left = static_cast<std::int64_t>(layout.matrices.size()) - first;
  job.num_matrices = static_cast<int>(std::min<std::int64_t>(left, EightBitJob::kMostMatrices));
  for (int m = 0; m < job.num_matrices; ++m) {
    const EightBitMatrix& matrix = layout.matrices[static_cast<std::size_t>(first + m)];
    job.offsets[m] = matrix.offset;
    job.rows_before[m] = matrix.rows_before;
    job.row_numels[m] = matrix.row_numel;
  }
  const auto next = static_cast<std::size_t>(first + job.num_matrices);
  job.end = next < layout.matrices.size() ? layout.matrices[next].offset : layout.numel;
  job.slice_numel = layout.slice_numel;
  job.slice_bytes = layout.slice_bytes();
  job.num_scales = layout.num_scales;
  job.floats = dtype == at::kFloat8_e4m3fn;
  return job;
}

namespace {

void values_on_cuda(const EightBitSlices& layout, at::ScalarType dtype, const at::Tensor& slices,
                    const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(out.device());
  const auto stream = c10::cuda::getCurrentCUDAStream(out.device().index());
  const Type type = out.scalar_type() == at::kFloat  ? Type::f32
                    : out.scalar_type() == at::kHalf ? Type::f16
                                                     : Type::bf16;
  const auto count = static_cast<std::int64_t>(layout.matrices.size());
  for (std::int64_t first = 0; first < count; first += EightBitJob::kMostMatrices) {
    const EightBitJob job = job_of(layout, dtype, first);
    launch_from_eight_bit(type, job, slices.const_data_ptr(), out.mutable_data_ptr(), stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}
#else
void values_on_cuda(const EightBitSlices&, at::ScalarType, const at::Tensor&, const at::Tensor&) {
  missing();
}
#endif

}  // namespace

void from_eight_bit(const EightBitSlices& layout, at::ScalarType dtype, const at::Tensor& slices,
                    const at::Tensor& out) {
  if (is_rehearsed(out)) return rehearsed::from_eight_bit(slices, out);
  if (!out.is_cpu()) return values_on_cuda(layout, dtype, slices, out);
  switch (out.scalar_type()) {
    case at::kFloat: return values_on_cpu<float>(layout, dtype, slices, out);
    case at::kHalf: return values_on_cpu<at::Half>(layout, dtype, slices, out);
    case at::kBFloat16: return values_on_cpu<at::BFloat16>(layout, dtype, slices, out);
    default: throw Error(str("8-bit values cannot become ", out.dtype().name()));
  }
}

}  // namespace floe::kernels
