// y = x Wᵀ + b, whatever W is held in.
//
// Note [Weights that are codes]
// With FrozenOptions::compute fp8 the parameter of a frozen linear layer is no matrix of values but
// of codes (e4m3) [out, in], as it is stored; value = code · scale of the row. What a product needs
// besides, the scales and where backward comes through the transposed codes [in, out], is attached
// to the tensor (`attach_codes`), so that it goes wherever the parameter goes: into a fused
// projection, a list, what autograd saved. Who reads such a parameter uses the functions here, or
// says nothing of it in Module::multiplies and gets values.
//
//   forward   y = (x̂ · Ŵᵀ) · sx · sw + b     x in 8 bits row by row, as it comes
//   backward  dx = ((dy · sw)^ · Ŵ) · s       the scales of W lie along the sum, so they go into dy
//                                             before that is brought to 8 bits; needs Ŵ transposed
//
// W never trains, so there is no third product. Nothing of x is kept for backward. What rounding
// costs: codes have 3 bits of mantissa, so each is off by at most 1/16 and in the mean of squares
// by about 1/37 of its value; a sum of many products of two such is off by about √2/37 = 0.038 of
// its own spread, and one product more adds to it as independent errors do.
//
// Rows are brought to 8 bits by a kernel of their own, once for each product, or once for all
// products of the same x (q, k and v; gate and up) inside of a SharedRows. The kernels of frozen
// norms and of GELU make the codes themselves. A kernel of attention that makes x and its codes at
// once would hand them to a SharedRows too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace floe::nn {

// What belongs to a weight of codes.
struct WeightCodes {
  at::Tensor scales;      // [out] fp32
  at::Tensor transposed;  // [in, out] e4m3; undefined: made when backward needs it
};
// From now on the tensor, e4m3 [out, in], is a weight of codes; `detach_codes` ends that.
void attach_codes(const at::Tensor& weight, WeightCodes codes);
void detach_codes(const at::Tensor& weight);
// Null for a weight of values.
const WeightCodes* codes_of(const at::Tensor& weight);

// x [..., in] → [..., out]; the bias may be undefined. A weight of codes has no gradient, its bias
// may have one.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

// x [..., in] · weightᵀ + bias as [rows, out], and slope [rows, out] · weight, of a weight of codes
// and without gradients.
at::Tensor coded_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor coded_product_back(const at::Tensor& slope, const at::Tensor& weight);

// While it lives, products of `x` with weights of codes on this thread share its codes: x is
// brought to 8 bits once, by the first of them. Costs nothing where weights are values.
class SharedRows {
 public:
  explicit SharedRows(const at::Tensor& x);
  // Whoever made x made its codes [rows, in] and scales [rows] as well (kernels::Normed);
  // undefined: as above.
  SharedRows(const at::Tensor& x, at::Tensor codes, at::Tensor scales);
  ~SharedRows();
  SharedRows(const SharedRows&) = delete;
  SharedRows& operator=(const SharedRows&) = delete;

 private:
  friend struct RowsOf;

  at::Tensor x_;
  std::int64_t version_;
  at::Tensor codes_, scales_;  // once they are needed
  SharedRows* outer_;
};

// linear(gelu(linear(x, up, up_bias)), down, down_bias) of two weights of codes, without gradients
// for biases. Kept for backward are the slopes of GELU, a byte each; what lies between the two
// products is written in 8 bits only.
at::Tensor coded_gelu_mlp(const at::Tensor& x, const at::Tensor& up, const at::Tensor& up_bias,
                          const at::Tensor& down, const at::Tensor& down_bias);

// sum [rows, out] += x [rows, in] · weightᵀ in place, without gradients.
void add_linear_(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight);
// Likewise of quick_gelu(x), which is nowhere written where the weight is codes.
void add_quick_gelu_linear_(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight);

}  // namespace floe::nn
