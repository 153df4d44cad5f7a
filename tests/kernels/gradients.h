// Values and gradients of a step against the same in fp64.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/kernels/compare.h"

namespace floe::test {

using Tensors = std::vector<at::Tensor>;

inline at::Tensor leaf(const at::Tensor& x, at::ScalarType dtype) {
  return x.detach().to(dtype).clone().requires_grad_();
}

// The gradient that an output gets, from its value in fp64.
inline at::Tensor random_gradient(const at::Tensor& output) {
  return random_on_gpu(output.sizes(), at::kFloat);
}
// One that goes with the output: what sums over all of it, as a gate's gradient does, does not
// cancel. Small, so that such a sum stays within fp16.
inline at::Tensor gradient_along(const at::Tensor& output) {
  return (output.detach() + random_gradient(output)) / 256;
}

// Values and gradients of `step` on these inputs against those of `plain` in fp64.
inline void compare(const Tensors& inputs, at::ScalarType dtype,
                    const std::function<Tensors(const Tensors&)>& step,
                    const std::function<Tensors(const Tensors&)>& plain, double tolerance,
                    at::Tensor (*gradient_of)(const at::Tensor&) = random_gradient) {
  Tensors narrow, wide;
  for (const at::Tensor& input : inputs) {
    narrow.push_back(leaf(input, dtype));
    wide.push_back(leaf(narrow.back(), at::kDouble));
  }
  // Steps may overwrite what they are given: they get tensors that are nobody's leaf.
  Tensors given;
  for (const at::Tensor& x : narrow) given.push_back(x * 1);
  const Tensors got = step(given), want = plain(wide);
  ASSERT_EQ(got.size(), want.size());
  at::Tensor sum, wide_sum;
  for (std::size_t i = 0; i < got.size(); ++i) {
    expect_close(got[i], want[i], tolerance, "output " + std::to_string(i));
    const at::Tensor weight = gradient_of(want[i]).to(dtype);
    const at::Tensor part = (got[i].to(at::kDouble) * weight.to(at::kDouble)).sum();
    const at::Tensor wide_part = (want[i] * weight.to(at::kDouble)).sum();
    sum = sum.defined() ? sum + part : part;
    wide_sum = wide_sum.defined() ? wide_sum + wide_part : wide_part;
  }
  sum.backward();
  wide_sum.backward();
  for (std::size_t i = 0; i < narrow.size(); ++i)
    expect_close(narrow[i].grad(), wide[i].grad(), tolerance, "gradient " + std::to_string(i));
}

}  // namespace floe::test
