// Products in fp8 (Note [FP8 products], Note [Weights that are codes]): what becomes of rows and
// matrices, what products of them are, their gradients, and how far from exact all of it is. With
// FLOE_TEST_DEVICE on a GPU, where the CPU's arithmetic is the reference.
#include "floe/nn/products/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "floe/core/bytes.h"
#include "floe/kernels/eight_bit/fp8_product.h"
#include "floe/nn/fused.h"
#include "floe/nn/layers.h"
#include "tests/support/device.h"

namespace floe::nn::linear_test {
namespace {

using test::device;

constexpr auto kFp8 = at::kFloat8_e4m3fn;
// Half a step of e4m3 is 2⁻⁴ of the lower end of its binade; over a binade the root of the mean
// square is 0.026 of the value. Two rounded factors: √2 · 0.026, and some room for chance.
constexpr double kProductError = 0.042;

// Results are rounded once: fp32 on the CPU, where nothing hides, bf16 on a GPU.
at::ScalarType computed_in() { return device().is_cpu() ? at::kFloat : at::kBFloat16; }
double rounding() { return device().is_cpu() ? 3e-6 : 4e-3; }

at::Tensor random(at::IntArrayRef shape) { return at::randn(shape).to(device(), computed_in()); }

double relative(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor a = got.detach().to(at::kCPU, at::kDouble),
                   b = want.detach().to(at::kCPU, at::kDouble);
  return ((a - b).norm() / b.norm()).item<double>();
}
double cosine(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor a = got.detach().to(at::kCPU, at::kDouble).flatten(),
                   b = want.detach().to(at::kCPU, at::kDouble).flatten();
  return (a.dot(b) / (a.norm() * b.norm())).item<double>();
}

at::Tensor values_of(const kernels::CodedRows& rows) {
  return rows.codes.cpu().to(at::kFloat) * rows.scales.cpu().unsqueeze(1);
}

// A weight of codes, and the values that it stands for (fp32, CPU).
struct Coded {
  explicit Coded(const at::Tensor& exact, bool transposed = true) {
    const auto rows = kernels::to_eight_bit(exact, kFp8);
    values = rows.codes.view(kFp8).to(at::kFloat) * rows.scales.unsqueeze(1);
    weight = rows.codes.view(kFp8).to(device());
    WeightCodes codes{rows.scales.to(device()), {}};
    if (transposed) codes.transposed = rows.codes.t().contiguous().view(kFp8).to(device());
    attach_codes(weight, std::move(codes));
  }
  at::Tensor weight, values;
};

// ---- rows ----

TEST(Rows, AreTheSameBitsOnEveryDevice) {
  at::manual_seed(1);
  for (const auto dtype : {kFp8, at::kFloat8_e5m2})
    for (const auto& [rows, columns] :
         {std::pair{1, 16}, {7, 48}, {33, 1024}, {5, 4112}, {3, 16384}, {0, 32}})
      for (const bool with_factors : {false, true})
        for (const auto in : {at::kFloat, at::kHalf, at::kBFloat16}) {
          const at::Tensor x =
              (at::randn({rows, columns}) * at::logspace(-3, 3, rows).unsqueeze(1)).to(in);
          const at::Tensor factors = with_factors ? at::rand({columns}) + 0.01 : at::Tensor();
          at::Tensor expected = x.to(at::kFloat);
          if (with_factors) expected = expected * factors;
          const auto want = kernels::to_eight_bit(expected, dtype);
          const auto got = kernels::to_coded_rows(x.to(device()), dtype,
                                                  with_factors ? factors.to(device()) : factors);
          EXPECT_TRUE(got.codes.cpu().view(at::kByte).equal(want.codes)) << rows << "x" << columns;
          EXPECT_TRUE(got.scales.cpu().equal(want.scales));
        }
}

TEST(Rows, AreWithinHalfAStep) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({50, 320});
  const at::Tensor largest = x.abs().amax(1, true);
  const at::Tensor back = values_of(kernels::to_coded_rows(x.to(device()), kFp8, {}));
  const at::Tensor bound = at::maximum(x.abs() / 16, largest / 448 * std::ldexp(1.0, -10));
  EXPECT_TRUE(((back - x).abs() <= bound * (1 + 1e-5)).all().item<bool>());
}

// The step is rounded as if it had been written; its slopes are off by half of a step of theirs.
TEST(Rows, OfGeluAreThoseOfItsResult) {
  at::manual_seed(3);
  for (const auto in : {at::kFloat, at::kBFloat16})
    for (const auto& [rows, columns] : {std::pair{7, 48}, {3, 16384}, {2, 20480}}) {
      const at::Tensor x = (at::randn({rows, columns}) * 2).to(in);
      const auto got = kernels::gelu_to_coded_rows(x.to(device()), /*with_slopes=*/true);
      const at::Tensor want = at::gelu(x.to(at::kDouble));
      const at::Tensor largest = want.abs().amax(1, true);
      const double own = in == at::kFloat ? 1e-5 : std::ldexp(1.0, -8);
      const at::Tensor bound =
          at::maximum(want.abs() / 16, largest / 448 * std::ldexp(1.0, -10)) + own * want.abs();
      EXPECT_TRUE(((values_of(got.rows) - want).abs() <= bound + 1e-6).all().item<bool>());
      const at::Tensor slopes = at::gelu_backward(at::ones_like(want), x.to(at::kDouble));
      const at::Tensor kept =
          (got.slopes.cpu().to(at::kDouble) - kernels::kSlopeZero) / kernels::kSlopeSteps;
      EXPECT_LE((kept - slopes).abs().max().item<double>(), 0.5 / kernels::kSlopeSteps + 1e-5);
      EXPECT_FALSE(kernels::gelu_to_coded_rows(x.to(device()), false).slopes.defined());

      const at::Tensor grad = at::randn({rows, columns}).to(in), factors = at::rand({columns});
      const auto back =
          kernels::gelu_slopes_to_coded_rows(grad.to(device()), got.slopes, factors.to(device()));
      const at::Tensor passed = (grad.to(at::kDouble) * kept).to(in).to(at::kDouble) * factors;
      const at::Tensor steps =
          at::maximum(passed.abs() / 16, passed.abs().amax(1, true) / 448 * std::ldexp(1.0, -10));
      EXPECT_TRUE(((values_of(back) - passed).abs() <= steps * (1 + 1e-4) + own * passed.abs())
                      .all()
                      .item<bool>());
    }
}

TEST(Rows, OfZerosGiveZerosAndWhatIsNotFiniteStaysSo) {
  at::Tensor x = at::randn({5, 64});
  x[0].zero_();
  x[1][3] = std::nan("");
  x[2][60] = std::numeric_limits<float>::infinity();
  const Coded weight(at::randn({32, 64}));
  const at::Tensor y =
      nn::linear(x.to(device(), computed_in()), weight.weight).cpu().to(at::kFloat);
  EXPECT_TRUE(y[0].equal(at::zeros({32})));
  EXPECT_FALSE(y[1].isfinite().any().item<bool>());
  EXPECT_FALSE(y[2].isfinite().any().item<bool>());
  EXPECT_TRUE(y.narrow(0, 3, 2).isfinite().all().item<bool>());
}

// ---- matrices ----

TEST(Matrices, AreTransposedByteByByte) {
  for (const auto& [rows, columns] :
       {std::pair{16, 16}, {64, 64}, {80, 48}, {16, 1040}, {1008, 16}, {320, 192}}) {
    const at::Tensor matrix = at::randint(0, 256, {rows, columns}, at::kByte);
    const at::Tensor out = at::zeros({columns, rows}, at::kByte).to(device());
    kernels::transpose_bytes(matrix.to(device()), out);
    EXPECT_TRUE(out.cpu().equal(matrix.t())) << rows << "x" << columns;
  }
}

TEST(Matrices, ComeOutOfSlicesWithTheirScales) {
  at::manual_seed(3);
  for (int slices = 1; slices < 8; ++slices)
    for (const int count : {1, 3, 130}) {  // more matrices than one launch takes
      std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
      std::int64_t numel = 0;
      for (int m = 0; m < count; ++m) {
        shapes.emplace_back(16 * (1 + m % 3), 16 * (1 + m % 5));
        numel += shapes.back().first * shapes.back().second;
      }
      using kernels::EightBitSlices;
      const EightBitSlices layout(
          shapes, round_up(ceil_div(numel, slices), EightBitSlices::kAlignment), slices);
      const at::Tensor stored = at::randint(0, 256, {slices * layout.slice_bytes()}, at::kByte);
      const at::Tensor scales = at::rand({layout.num_rows});
      for (int s = 0; s < slices; ++s) {
        const auto [first, rows] = layout.rows_of(s);
        layout.put_scales(stored.narrow(0, s * layout.slice_bytes(), layout.slice_bytes()), first,
                          scales.narrow(0, first, rows));
      }
      const at::Tensor codes = at::zeros({slices * layout.slice_numel}, at::kByte).to(device());
      const at::Tensor found = at::zeros({layout.num_rows}).to(device());
      kernels::separate(layout, stored.to(device()), codes, found);
      EXPECT_TRUE(codes.cpu().equal(layout.all_codes(stored))) << slices << " slices";
      EXPECT_TRUE(found.cpu().equal(scales)) << slices << " slices";
    }
}

// ---- products ----

TEST(Products, AreThoseOfTheRoundedFactors) {
  at::manual_seed(4);
  for (const bool with_bias : {false, true})
    for (const auto& [rows, in, out] :
         {std::tuple{1, 16, 16}, {5, 64, 48}, {130, 512, 1024}, {64, 1024, 256}, {0, 32, 16}}) {
      const at::Tensor x = random({rows, in});
      const Coded weight(at::randn({out, in}));
      const at::Tensor bias = with_bias ? random({out}) : at::Tensor();
      const at::Tensor y = nn::linear(x, weight.weight, bias);
      ASSERT_EQ(y.sizes(), (at::IntArrayRef{rows, out}));
      EXPECT_EQ(y.scalar_type(), x.scalar_type());
      if (rows == 0) continue;
      const at::Tensor rounded = values_of(kernels::to_coded_rows(x, kFp8, {}));
      at::Tensor want = rounded.to(at::kDouble).mm(weight.values.to(at::kDouble).t());
      if (with_bias) want = want + bias.cpu().to(at::kDouble);
      EXPECT_LE(relative(y, want), rounding()) << rows << " " << in << " " << out;
    }
}

TEST(Products, AreAsFarFromExactAsTwoRoundedFactorsAre) {
  at::manual_seed(5);
  const at::Tensor x = random({256, 1024}), exact = at::randn({512, 1024});
  const Coded weight(exact);
  const double error = relative(nn::linear(x, weight.weight), x.cpu().to(at::kFloat).mm(exact.t()));
  EXPECT_LE(error, kProductError);
  EXPECT_GE(error, kProductError / 2) << "8 bits must show";
}

TEST(Products, KeepTheShapeInFront) {
  const Coded weight(at::randn({48, 32}));
  const at::Tensor x = random({2, 3, 5, 32});
  const at::Tensor y = nn::linear(x, weight.weight);
  EXPECT_EQ(y.sizes(), (at::IntArrayRef{2, 3, 5, 48}));
  EXPECT_TRUE(y.view({30, 48}).equal(nn::linear(x.view({30, 32}), weight.weight)));
  // What comes out may be changed in place, as that of at::linear may.
  at::Tensor tracked = random({4, 32}).requires_grad_();
  nn::linear(tracked, weight.weight).mul_(2).sum().backward();
  EXPECT_TRUE(tracked.grad().defined());
  // Also of what does not lie in one piece.
  const at::Tensor strided = random({5, 3, 32}).transpose(0, 1);
  EXPECT_TRUE(
      nn::linear(strided, weight.weight).equal(nn::linear(strided.contiguous(), weight.weight)));
}

TEST(Products, ShareTheRowsOfWhatComesIn) {
  const Coded first(at::randn({48, 32})), second(at::randn({16, 32}));
  const at::Tensor x = random({7, 32});
  const at::Tensor a = nn::linear(x, first.weight), b = nn::linear(x, second.weight);
  const SharedRows once(x);
  EXPECT_TRUE(nn::linear(x, first.weight).equal(a));
  EXPECT_TRUE(nn::linear(x, second.weight).equal(b));
  // Values of another tensor, and values that were written since, are their own.
  const at::Tensor other = random({7, 32});
  const at::Tensor expected = nn::linear(other, first.weight);
  EXPECT_FALSE(expected.equal(a));
  x.copy_(other);
  EXPECT_TRUE(nn::linear(x, first.weight).equal(expected));
}

TEST(Products, OfQuickGeluAreThoseOfItsRoundedValues) {
  at::manual_seed(11);
  const Coded weight(at::randn({48, 1056}));
  const at::Tensor x = random({37, 1056}) * 3;
  const auto want = kernels::to_coded_rows(quick_gelu(x), kFp8, {});
  const auto got = kernels::quick_gelu_to_coded_rows(x);
  EXPECT_TRUE(got.codes.view(at::kByte).equal(want.codes.view(at::kByte)));
  EXPECT_TRUE(got.scales.equal(want.scales));
  const at::Tensor sum = random({37, 48}), values = weight.values.to(device(), computed_in());
  for (const at::Tensor& w : {weight.weight, values}) {
    const at::Tensor ours = sum.clone(), theirs = sum.clone();
    add_quick_gelu_linear_(ours, x, w);
    add_linear_(theirs, quick_gelu(x), w);
    EXPECT_TRUE(ours.equal(theirs));
  }
}

TEST(Products, TakeRowsThatWereMadeElsewhere) {
  const Coded weight(at::randn({48, 32}));
  const at::Tensor x = random({7, 32}), other = random({7, 32});
  const auto rows = kernels::to_coded_rows(other, kFp8, {});
  const SharedRows given(x, rows.codes, rows.scales);
  EXPECT_TRUE(nn::linear(x, weight.weight).equal(nn::linear(other, weight.weight)));
}

TEST(Products, AreAddedInPlace) {
  const at::Tensor exact = at::randn({48, 32});
  const Coded weight(exact);
  const at::Tensor x = random({7, 32}), sum = random({7, 48});
  const at::Tensor want = sum + nn::linear(x, weight.weight);
  add_linear_(sum, x, weight.weight);
  EXPECT_TRUE(sum.equal(want));
  const at::Tensor plain = exact.to(device(), computed_in()), other = at::zeros_like(sum);
  add_linear_(other, x, plain);
  EXPECT_LE(relative(other, nn::linear(x, plain)), rounding());
}

// ---- gradients ----

// dx of fp8 against dx of exact arithmetic: the limits follow from kProductError, as the error is
// independent of the value: cos = 1 - e²/2, and the norm grows by e²/2.
TEST(Gradients, PointWhereExactOnesDo) {
  at::manual_seed(6);
  const at::Tensor exact = at::randn({512, 768}) * at::logspace(-2, 1, 512).unsqueeze(1);
  const Coded weight(exact);
  at::Tensor x = random({200, 768}).requires_grad_();
  at::Tensor bias = random({512}).requires_grad_();
  const at::Tensor slope = random({200, 512}) * at::logspace(-4, 0, 200).unsqueeze(1).to(device());
  nn::linear(x, weight.weight, bias).backward(slope.to(computed_in()));
  const at::Tensor s = slope.to(computed_in()).cpu().to(at::kFloat);
  const at::Tensor want = s.mm(exact);
  const double e = kProductError;
  EXPECT_GE(cosine(x.grad(), want), 1 - e * e);
  EXPECT_NEAR((x.grad().cpu().to(at::kFloat).norm() / want.norm()).item<double>(), 1,
              2 * e * e + rounding());
  EXPECT_LE(relative(x.grad(), want), e);
  EXPECT_LE(relative(bias.grad(), s.sum(0)), 4 * rounding()) << "no 8 bits in there";

  // And exactly what the formula says: scales folded into the slope, then its rows rounded.
  const at::Tensor scales = codes_of(weight.weight)->scales;
  const auto rows = kernels::to_coded_rows(slope.to(computed_in()), kFp8, scales);
  const at::Tensor formula =
      values_of(rows).to(at::kDouble).mm(weight.weight.cpu().to(at::kDouble));
  EXPECT_LE(relative(x.grad(), formula), rounding());
}

TEST(Gradients, DoNotDependOnWhetherTransposedCodesAreThere) {
  at::manual_seed(7);
  const at::Tensor exact = at::randn({64, 96});
  const Coded with(exact, true), without(exact, false);
  at::Tensor a = random({10, 96}).requires_grad_(), b = a.detach().clone().requires_grad_();
  const at::Tensor slope = random({10, 64});
  nn::linear(a, with.weight).backward(slope);
  nn::linear(b, without.weight).backward(slope);
  EXPECT_TRUE(a.grad().equal(b.grad()));
}

TEST(Gradients, OfABiasAloneNeedNoWeight) {
  const Coded weight(at::randn({32, 16}));
  at::Tensor bias = random({32}).requires_grad_();
  const auto references = weight.weight.use_count();
  const at::Tensor y = nn::linear(random({4, 16}), weight.weight, bias);
  EXPECT_EQ(weight.weight.use_count(), references) << "backward does not read it";
  y.sum().backward();
  EXPECT_TRUE(bias.grad().equal(at::full_like(bias, 4)));
  const at::Tensor through = nn::linear(random({4, 16}).requires_grad_(), weight.weight);
  EXPECT_GT(weight.weight.use_count(), references) << "so that it is gathered for backward";
}

// ---- layers ----

// The same layer with values and with codes; the adapter's gradients agree as products do.
TEST(Layers, LoraTrainsBesideCodes) {
  at::manual_seed(8);
  Linear plain(128, 96), coded(128, 96);
  for (Linear* layer : {&plain, &coded}) {
    layer->adapt({.rank = 4});
    materialize(*layer, 3, device());
    const at::NoGradGuard no_grad;
    for (auto& p : named_parameters(*layer)) p.tensor.set_data(p.tensor.to(computed_in()));
    at::manual_seed(9);
    layer->named_parameters()["lora_B.weight"].copy_(at::randn({96, 4}) * 0.1);
    layer->weight.requires_grad_(false);
  }
  {
    const Coded codes(plain.weight.cpu().to(at::kFloat));
    coded.weight.set_data(codes.weight.detach());
    attach_codes(coded.weight, *codes_of(codes.weight));
  }
  const at::Tensor x = random({64, 128}), slope = random({64, 96});
  at::Tensor a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
  const at::Tensor ours = coded.forward(b), theirs = plain.forward(a);
  EXPECT_LE(relative(ours, theirs), 1.2 * kProductError);
  ours.backward(slope);
  theirs.backward(slope);
  EXPECT_LE(relative(b.grad(), a.grad()), 1.2 * kProductError);
  for (const char* name : {"lora_A.weight", "lora_B.weight"})
    EXPECT_LE(
        relative(coded.named_parameters()[name].grad(), plain.named_parameters()[name].grad()),
        rounding())
        << name << ": beside the product, not behind it";
  detach_codes(coded.weight);
  EXPECT_EQ(codes_of(coded.weight), nullptr);
}

// As one node it gives what the three steps give, and keeps a byte for each value between them.
TEST(Layers, AnMlpOfCodesKeepsSlopesOnly) {
  at::manual_seed(12);
  for (const bool bias : {false, true}) {
    const Coded up(at::randn({256, 64}) / 8), down(at::randn({64, 256}) / 16);
    const at::Tensor up_bias = bias ? random({256}) : at::Tensor();
    const at::Tensor down_bias = bias ? random({64}) : at::Tensor();
    const at::Tensor x = random({3, 20, 64}), slope = random({3, 20, 64});
    at::Tensor a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
    const at::Tensor ours = coded_gelu_mlp(a, up.weight, up_bias, down.weight, down_bias);
    const at::Tensor theirs =
        nn::linear(nn::gelu(nn::linear(b, up.weight, up_bias)), down.weight, down_bias);
    EXPECT_EQ(ours.sizes(), theirs.sizes());
    EXPECT_LE(relative(ours, theirs), 2 * rounding());
    ours.backward(slope);
    theirs.backward(slope);
    // Where a slope's rounding moves a value over the border between two codes.
    EXPECT_LE(relative(a.grad(), b.grad()), 0.5 * kProductError);
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(coded_gelu_mlp(x, up.weight, up_bias, down.weight, down_bias).equal(ours.detach()));
  }
}

// Steps that are fused where weights are values, with weights of codes.
TEST(Layers, FusedStepsTakeCodes) {
  at::manual_seed(10);
  const Coded up(at::randn({128, 64}) / 8), down(at::randn({64, 128}) / 8);
  const auto as_values = [&](const Coded& weight) {
    return weight.values.to(device(), computed_in());
  };
  const NormWeights norm{random({64}), random({64})};
  const at::Tensor gate = at::full({1}, 0.5).to(device(), computed_in());
  const auto run = [&](const at::Tensor& first, const at::Tensor& second, at::Tensor& x) {
    const auto [on, inner] = norm_linear(x, norm, first);
    return add_gated_gelu_linear(on, inner, second, gate);
  };
  const at::Tensor input = random({20, 64}), slope = random({20, 64});
  at::Tensor a = input.clone().requires_grad_(), b = input.clone().requires_grad_();
  const at::Tensor want = run(as_values(up), as_values(down), a),
                   got = run(up.weight, down.weight, b);
  EXPECT_LE(relative(got - b, want - a), 3 * kProductError);
  want.backward(slope);
  got.backward(slope);
  EXPECT_GE(cosine(b.grad() - slope, a.grad() - slope), 1 - 6 * kProductError * kProductError);
}

TEST(Layers, WhatCannotBeMultipliedIsSaid) {
  EXPECT_EQ(kernels::why_no_fp8_products(at::kCPU, at::kFloat), "");
  EXPECT_EQ(
      kernels::why_no_fp8_products(at::Device("cuda:0"), at::kHalf),
      "needs mixed_precision.param bf16 on a GPU, whose 8-bit products give nothing else, not "
      "Half");
  if (device().is_cuda()) {
    EXPECT_EQ(kernels::why_no_fp8_products(device(), at::kBFloat16), "") << "Ada, Hopper or later";
  }
}

}  // namespace
}  // namespace floe::nn::linear_test
