// How far a result is from the same computation in fp64.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

namespace floe::test {

inline double relative_error(const at::Tensor& value, const at::Tensor& reference) {
  const at::Tensor got = value.to(at::kCPU, at::kDouble),
                   want = reference.to(at::kCPU, at::kDouble);
  const double scale = want.norm().item<double>();
  return (got - want).norm().item<double>() / (scale > 0 ? scale : 1);
}

// Rounding to the dtype once costs about a third of its unit; a few roundings are allowed.
inline double rounding(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 4e-3 : dtype == at::kHalf ? 5e-4 : 1e-5;
}

inline void expect_close(const at::Tensor& value, const at::Tensor& reference, double tolerance,
                         const std::string& what) {
  ASSERT_TRUE(value.defined()) << what;
  ASSERT_EQ(value.sizes(), reference.sizes()) << what;
  EXPECT_TRUE(value.isfinite().all().item<bool>()) << what << " is not finite";
  EXPECT_LT(relative_error(value, reference), tolerance) << what;
}

inline const auto kDtypes = {at::kFloat, at::kHalf, at::kBFloat16};

inline at::Tensor random_on_gpu(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, at::TensorOptions().device(at::kCUDA)).to(dtype);
}

}  // namespace floe::test
