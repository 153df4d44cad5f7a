// The launchers behind fp8_product.h: plain pointers, aligned to 16 bytes. All return at once; the
// work is on `stream`.
#pragma once

#include "floe/kernels/eight_bit/coded_step.h"
#include "floe/kernels/eight_bit/eight_bit_launch.h"
#include "floe/kernels/launch.h"

namespace floe::kernels {

struct CodedShape {
  std::int64_t rows = 0, columns = 0;  // columns are a multiple of 16
  bool wide_exponent = false;          // e5m2, else e4m3
  // Done to x first. Others than none: e4m3 only, gelu_slopes with factors, the rest without.
  CodedStep step = CodedStep::none;
};
// codes [rows, columns] and scales [rows] of x · factors (null: ones). `slopes` [rows, columns]:
// gelu writes those of x (see Note [Slopes in 8 bits]) unless it is null, gelu_slopes multiplies
// with them.
void launch_coded_rows(Type type, const CodedShape& shape, const void* x, const float* factors,
                       void* slopes, void* codes, float* scales, cudaStream_t stream);

// scales[row] of the job's rows, which end before `end_row`, out of all slices.
void launch_row_scales(const EightBitJob& job, std::int64_t end_row, const void* slices,
                       float* scales, cudaStream_t stream);

// out [columns, rows] of bytes [rows, columns]; both are multiples of 16.
void launch_transpose_bytes(const void* matrix, void* out, std::int64_t rows, std::int64_t columns,
                            cudaStream_t stream);

}  // namespace floe::kernels
