// Products of matrices in 8 bits, and what brings matrices into the form that they take.
//
// Note [FP8 products]
// `product` is the only place that decides how two matrices of codes are multiplied: torch's
// `_scaled_mm` on a GPU that has such products (row scales, and sums that fast accumulation keeps
// in fewer bits than fp32), the same arithmetic in fp32 on the CPU, so that every path can be
// tested there. Both take the second matrix as it stands in memory, [columns, summed]: Hopper's
// 8-bit products read both along the summed dimension.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "floe/kernels/eight_bit/coded_step.h"
#include "floe/kernels/eight_bit/eight_bit.h"

namespace floe::kernels {

// What both sides of a matrix must be a multiple of to be multiplied in 8 bits.
inline constexpr std::int64_t kProductAlignment = 16;

// Why products of codes cannot be computed on this device with results of that dtype: the end of a
// sentence. Empty: they can.
std::string why_no_fp8_products(at::Device device, at::ScalarType dtype);
// The same of a GPU of that name and compute capability.
std::string why_no_fp8_products(std::string_view gpu, int major, int minor, at::ScalarType dtype);

struct CodedRows {
  at::Tensor codes;   // [rows, columns] e4m3 or e5m2
  at::Tensor scales;  // [rows] fp32
};
// Rows of fp32, fp16 or bf16 values [rows, columns] in 8 bits: a row's largest magnitude becomes
// the largest code. `factors` [columns] fp32, if defined, multiply the values first. A value that
// is not finite makes every product of its row not finite.
CodedRows to_coded_rows(const at::Tensor& values, at::ScalarType dtype, const at::Tensor& factors);

// The e4m3 rows of x · sigmoid(1.702 x), as if that had been rounded to the dtype of x in between.
CodedRows quick_gelu_to_coded_rows(const at::Tensor& x);

struct GeluRows {
  CodedRows rows;
  at::Tensor slopes;  // [rows, columns], see Note [Slopes in 8 bits]; undefined unless asked for
};
// The e4m3 rows of gelu(x), as if that had been rounded to the dtype of x in between.
GeluRows gelu_to_coded_rows(const at::Tensor& x, bool with_slopes);
// Those of grad · slopes · factors [columns], likewise.
CodedRows gelu_slopes_to_coded_rows(const at::Tensor& grad, const at::Tensor& slopes,
                                    const at::Tensor& factors);

// rows · codesᵀ · scales + bias, summed in fp32 (see above) and rounded once to `dtype`: [rows,
// columns]. `codes` [columns, summed] e4m3; `scales` [columns] fp32, undefined: ones; `bias`
// [columns] of `dtype` or undefined.
at::Tensor product(const CodedRows& rows, const at::Tensor& codes, const at::Tensor& scales,
                   const at::Tensor& bias, at::ScalarType dtype);

// From all slices of a group [num_slices · slice_bytes] to its codes one after the other
// [num_slices · slice_numel] and the scale of each row [num_rows].
void separate(const EightBitSlices& layout, const at::Tensor& slices, const at::Tensor& codes,
              const at::Tensor& scales);

// out [columns, rows] = the transposed bytes of `matrix` [rows, columns]; both sides are multiples
// of kProductAlignment, both contiguous.
void transpose_bytes(const at::Tensor& matrix, const at::Tensor& out);

}  // namespace floe::kernels
