// Torch's attention where scores have all fallen far below zero, in fp32 on the CPU or, with
// FLOE_TEST_DEVICE, in bf16 on a GPU, against the formula in fp64: see Note [The last tile
// of cuDNN's attention].
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "floe/nn/attention.h"
#include "tests/support/device.h"

namespace floe::nn::torch_attention_test {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kDim = 64;
constexpr double kScore = -120;  // exp(120) is more than fp32 holds

at::ScalarType computed_in() { return test::device().is_cpu() ? at::kFloat : at::kBFloat16; }

// [2, 3, length, kDim], with one feature that gives all scores the same summand.
at::Tensor heads(std::int64_t length, double common) {
  at::Tensor x = at::randn({2, 3, length, kDim}) * 0.1;
  x.select(3, 0).fill_(common);
  return x.to(test::device(), computed_in()).requires_grad_();
}

at::Tensor by_the_formula(const Tensors& in, const at::Tensor& mask, bool causal) {
  at::Tensor scores = in[0].matmul(in[1].transpose(2, 3)) / std::sqrt(static_cast<double>(kDim));
  if (mask.defined()) scores = scores.masked_fill(mask.logical_not(), -INFINITY);
  if (causal) scores = scores.masked_fill(at::ones_like(scores, at::kBool).triu(1), -INFINITY);
  return scores.softmax(-1).matmul(in[2]);
}

// The gradients of q, k and v.
Tensors gradients(const at::Tensor& mixed, const Tensors& in, const at::Tensor& slope) {
  return torch::autograd::grad({mixed}, in, {slope});
}

double distance(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor exact = want.detach();
  return ((got.detach().to(exact.options()) - exact).norm() / exact.norm()).item<double>();
}

struct Shape {
  std::int64_t queries, keys;
  bool masked = false, causal = false;
};
std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << s.queries << " queries, " << s.keys << " keys" << (s.masked ? ", masked" : "")
             << (s.causal ? ", causal" : "");
}

class ScoresFarBelowZero : public testing::TestWithParam<Shape> {};

TEST_P(ScoresFarBelowZero, HaveTheirGradients) {
  const Shape& shape = GetParam();
  at::manual_seed(3);
  const Tensors in{heads(shape.queries, 1), heads(shape.keys, kScore * std::sqrt(kDim)),
                   heads(shape.keys, 0)};
  at::Tensor mask;
  if (shape.masked) {
    mask = at::ones({shape.queries, shape.keys}, at::kBool);
    mask.narrow(1, 0, shape.keys / 3).fill_(false);
    mask = mask.to(test::device()).expand({2, 1, -1, -1});
  }
  const at::Tensor slope = heads(shape.queries, 0.3).detach();
  const at::Tensor mixed = torch_attention(in[0], in[1], in[2], mask, {.causal = shape.causal});

  Tensors exact_in;
  for (const at::Tensor& x : in) exact_in.push_back(x.detach().to(at::kDouble).requires_grad_());
  const at::Tensor exact = by_the_formula(exact_in, mask, shape.causal);
  const double bound = test::device().is_cpu() ? 1e-3 : 3e-2;
  EXPECT_LT(distance(mixed, exact), bound);
  const Tensors got = gradients(mixed, in, slope),
                want = gradients(exact, exact_in, slope.to(at::kDouble));
  for (std::size_t i = 0; i < got.size(); ++i) {
    // The common feature of keys is the sum of a softmax's gradient, whose exact value is zero.
    const auto apart = [&](const at::Tensor& x) { return i == 0 ? x.narrow(3, 1, kDim - 1) : x; };
    EXPECT_LT(distance(apart(got[i]), apart(want[i])), bound) << "qkv"[i];
    EXPECT_TRUE(got[i].isfinite().all().item<bool>()) << "qkv"[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ScoresFarBelowZero,
                         testing::Values(Shape{64, 320}, Shape{64, 64}, Shape{128, 192},
                                         Shape{64, 128}, Shape{1, 128}, Shape{1, 64},
                                         Shape{128, 256}, Shape{257, 257}, Shape{50, 300},
                                         Shape{64, 320, true}, Shape{64, 192, true},
                                         Shape{128, 128, true}, Shape{192, 192, false, true},
                                         Shape{256, 256, false, true}));

// What is known to be wrong is left out, and no more than that.
TEST(CudnnSeesTheEnd, UnlessAPartOfATileLooksFull) {
  for (const std::int64_t keys : {64, 192, 320, 704})
    for (const std::int64_t queries : {1, 64, 128, 257})
      EXPECT_FALSE(cudnn_sees_the_end(queries, keys)) << queries << ", " << keys;
  EXPECT_FALSE(cudnn_sees_the_end(1, 128));
  EXPECT_FALSE(cudnn_sees_the_end(64, 256));
  EXPECT_TRUE(cudnn_sees_the_end(128, 128));
  EXPECT_TRUE(cudnn_sees_the_end(256, 4096));
  EXPECT_TRUE(cudnn_sees_the_end(257, 257));
  EXPECT_TRUE(cudnn_sees_the_end(50, 97));
}

}  // namespace
}  // namespace floe::nn::torch_attention_test
