// Every kernel against plain ATen in fp64, on random shapes and all dtypes.
#include "floe/kernels/kernels.h"

#include <cmath>
#include <random>

#include "floe/kernels/eight_bit/fp8_product.h"
#include "tests/kernels/compare.h"

namespace floe::kernels_test {
namespace {

using test::expect_close;
using test::kDtypes;
using test::random_on_gpu;
using test::rounding;

TEST(Usable, RefusesWhatKernelsCannotRead) {
  const at::Tensor x = random_on_gpu({8, 64}, at::kBFloat16);
  EXPECT_TRUE(kernels::usable({x, at::Tensor()}));
  EXPECT_FALSE(kernels::usable({x.t()}));
  EXPECT_FALSE(kernels::usable({x.cpu()}));
  EXPECT_FALSE(kernels::usable({x, x.to(at::kFloat)}));
  EXPECT_FALSE(kernels::usable({x.view({-1}).narrow(0, 1, 64)}));  // not aligned
  EXPECT_FALSE(kernels::usable({x.to(at::kDouble)}));
}

TEST(Activations, QuickGelu) {
  for (const auto dtype : kDtypes)
    for (const std::int64_t numel : {67, 4096, 1000003}) {
      const at::Tensor x = random_on_gpu({numel}, dtype) * 4;
      const at::Tensor wide = x.to(at::kDouble);
      expect_close(kernels::quick_gelu(x), wide * at::sigmoid(1.702 * wide), rounding(dtype), "y");
    }
}

TEST(Activations, GatedGeluAndItsGradient) {
  for (const auto dtype : kDtypes)
    for (const std::int64_t numel : {67, 4096, 777777})
      for (const bool gated : {false, true}) {
        const at::Tensor u = random_on_gpu({numel}, dtype) * 2;
        const at::Tensor gate = gated ? random_on_gpu({1}, dtype) : at::Tensor();
        const at::Tensor grad = random_on_gpu({numel}, dtype);
        at::Tensor wide = u.to(at::kDouble).requires_grad_();
        const at::Tensor factor = (gated ? gate.to(at::kDouble).tanh()
                                         : at::ones({1}, wide.options().requires_grad(false)))
                                      .detach()
                                      .requires_grad_();
        const at::Tensor y = factor * at::gelu(wide);
        expect_close(kernels::gated_gelu(u, gate), y, rounding(dtype), "y");
        y.backward(grad.to(at::kDouble));
        const at::Tensor u_grad = grad.clone();
        // The kernel takes the gradient of the branch without its factor.
        const auto back = kernels::gated_gelu_backward_(u_grad, u, gate);
        expect_close(u_grad, wide.grad(), rounding(dtype), "u's gradient");
        expect_close(back.out, y, rounding(dtype), "y again");
        if (!gated)
          expect_close(kernels::gelu_backward(grad, u), wide.grad(), rounding(dtype), "plain");
        const double scale = std::sqrt(static_cast<double>(numel));
        EXPECT_NEAR(back.factor.item<double>(), factor.grad().item<double>(), 1e-4 * scale);
      }
}

TEST(Norm, SumNormAndGradient) {
  std::mt19937 random(0);
  for (const auto dtype : kDtypes)
    for (const std::int64_t dim : {8, 64, 1024, 2048, 2560, 4096, 5120})
      for (const auto& [added, centred] : {std::pair{false, true}, std::pair{true, true},
                                           std::pair{false, false}, std::pair{true, false}}) {
        const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 3000);
        const at::Tensor x = random_on_gpu({rows, dim}, dtype) + 0.5;
        const at::Tensor more = added ? random_on_gpu({rows, dim}, dtype) : at::Tensor();
        const at::Tensor weight = random_on_gpu({dim}, dtype);
        const at::Tensor bias = centred ? random_on_gpu({dim}, dtype) : at::Tensor();
        const at::Tensor sum_bias = added ? random_on_gpu({dim}, dtype) : at::Tensor();
        ASSERT_TRUE(kernels::norm_fits(x));
        const auto out = kernels::layer_norm(x, more, weight, bias, sum_bias,
                                             {.eps = 1e-5, .statistics = true, .centred = centred});
        if (dim % kernels::kProductAlignment == 0) {  // the same with codes of `out` beside it
          const auto coded = kernels::layer_norm(
              x, more, weight, bias, sum_bias,
              {.eps = 1e-5, .statistics = true, .centred = centred, .codes = true});
          const auto rows = kernels::to_coded_rows(out.out, at::kFloat8_e4m3fn, {});
          EXPECT_TRUE(coded.out.equal(out.out) && coded.rstd.equal(out.rstd));
          EXPECT_TRUE(coded.codes.view(at::kByte).equal(rows.codes.view(at::kByte))) << dim;
          EXPECT_TRUE(coded.code_scales.equal(rows.scales)) << dim;
        }
        const at::Tensor sum = added ? (x + more) : x;  // rounded as the kernel rounds
        at::Tensor wide = sum.to(at::kDouble).requires_grad_();
        at::Tensor wide_weight = weight.to(at::kDouble).requires_grad_();
        at::Tensor wide_bias;
        if (centred) wide_bias = bias.to(at::kDouble).requires_grad_();
        const at::Tensor y = centred ? at::layer_norm(wide, {dim}, wide_weight, wide_bias)
                                     : at::rms_norm(wide, {dim}, wide_weight, 1e-5);
        expect_close(out.out, y, rounding(dtype), "norm");
        if (added)
          expect_close(out.sum, sum.to(at::kDouble) + sum_bias.to(at::kDouble), rounding(dtype),
                       "sum");
        const at::Tensor grad = random_on_gpu({rows, dim}, dtype),
                         along = random_on_gpu({rows, dim}, dtype);
        y.backward(grad.to(at::kDouble));
        const auto back = [&](const at::Tensor& more_grad, bool input, bool weights) {
          return kernels::layer_norm_backward(grad, sum, out.mean, out.rstd, weight, more_grad,
                                              input, weights);
        };
        expect_close(back({}, true, false).input, wide.grad(), 3 * rounding(dtype), "gradient");
        const auto all = back(along, true, true);
        expect_close(all.input, wide.grad() + along.to(at::kDouble), 3 * rounding(dtype),
                     "gradient and sum");
        for (const auto& grads : {all, back({}, false, true)}) {
          expect_close(grads.weight, wide_weight.grad(), 3 * rounding(dtype), "weight's gradient");
          if (centred)
            expect_close(grads.bias, wide_bias.grad(), 3 * rounding(dtype), "bias's gradient");
        }
        EXPECT_FALSE(back({}, false, true).input.defined());
      }
}

// The longest rows, whose blocks have the most threads.
TEST(Norm, TheLongestRows) {
  for (const auto dtype : kDtypes) {
    const std::int64_t pack = 16 / static_cast<std::int64_t>(c10::elementSize(dtype));
    std::int64_t dim = 64;
    while (kernels::norm_fits(at::empty({1, 2 * dim}, at::dtype(dtype)))) dim *= 2;
    EXPECT_FALSE(kernels::norm_fits(at::empty({1, dim + pack}, at::dtype(dtype))));
    const at::Tensor x = random_on_gpu({5, dim}, dtype), more = random_on_gpu({5, dim}, dtype),
                     weight = random_on_gpu({dim}, dtype), bias = random_on_gpu({dim}, dtype),
                     grad = random_on_gpu({5, dim}, dtype);
    const auto out = kernels::layer_norm(x, more, weight, bias, {},
                                         {.statistics = true, .codes = true, .kept = true});
    const at::Tensor wide = (x + more).to(at::kDouble).requires_grad_();
    const at::Tensor y =
        at::layer_norm(wide, {dim}, weight.to(at::kDouble), bias.to(at::kDouble), 1e-5);
    expect_close(out.out, y, rounding(dtype), "norm");
    y.backward(grad.to(at::kDouble));
    const auto back = [&](const at::Tensor& of) {
      return kernels::layer_norm_backward(grad, of, out.mean, out.rstd, weight, {}, true, false)
          .input;
    };
    expect_close(back(out.sum), wide.grad(), 3 * rounding(dtype), "gradient");
    expect_close(back(out.kept), wide.grad(), 5e-2, "gradient from rows in 8 bits");
  }
}

// Means a thousand times as large as what is spread around them must not cost the spread.
TEST(Norm, RowsFarFromZero) {
  for (const std::int64_t dim : {64, 1032, 4096}) {
    const at::Tensor x = random_on_gpu({37, dim}, at::kFloat) + 1000, ones = at::ones_like(x[0]);
    const auto out = kernels::layer_norm(x, {}, ones, {}, {}, {.eps = 1e-5});
    expect_close(out.out, at::layer_norm(x.to(at::kDouble), {dim}), 1e-4, "norm");
  }
}

// As many rows as make all strips there are, and none, whose sums are zero.
TEST(Norm, WeightGradientsOfManyRowsRepeatToTheBit) {
  for (const auto dtype : kDtypes)
    for (const auto& [rows, dim] : {std::pair<std::int64_t, std::int64_t>{30001, 264},
                                    {20000, 1024},
                                    {9000, 16384},
                                    {0, 64}}) {
      const at::Tensor x = random_on_gpu({rows, dim}, dtype), weight = random_on_gpu({dim}, dtype);
      // Not zero in the mean, so that sums are large beside the rounding of their terms.
      const at::Tensor grad =
          (random_on_gpu({rows, dim}, at::kFloat) + x.to(at::kFloat) + 1).to(dtype);
      const at::Tensor mean = x.to(at::kFloat).mean(-1, true);
      const at::Tensor rstd = random_on_gpu({rows, 1}, at::kFloat).abs() + 0.5;
      const auto back = [&] {
        return kernels::layer_norm_backward(grad, x, mean, rstd, weight, {}, false, true);
      };
      const auto grads = back(), again = back();
      EXPECT_TRUE(grads.weight.equal(again.weight) && grads.bias.equal(again.bias));
      const at::Tensor slopes = grad.to(at::kDouble), normed = (x.to(at::kDouble) - mean) * rstd;
      expect_close(grads.weight, (slopes * normed).sum(0), rounding(dtype), "weight's gradient");
      expect_close(grads.bias, slopes.sum(0), rounding(dtype), "bias's gradient");
    }
}

TEST(Rotary, TurnsAndTurnsBack) {
  for (const auto dtype : kDtypes)
    for (const std::int64_t dim : {2, 16, 80})
      for (const std::int64_t tokens : {1, 37}) {
        const std::int64_t heads = 3, head = 80;
        const at::Tensor rows = random_on_gpu({tokens, heads, 3 * head}, dtype);
        const at::Tensor x = rows.narrow(2, head, head);  // keys of a fused projection
        const at::Tensor cos = random_on_gpu({tokens, 1, dim}, dtype),
                         sin = random_on_gpu({tokens, 1, dim}, dtype);
        at::Tensor wide = x.to(at::kDouble).detach().clone().requires_grad_();
        const at::Tensor turned = wide.narrow(2, 0, dim);
        const at::Tensor crossed =
            at::cat({-turned.narrow(2, dim / 2, dim / 2), turned.narrow(2, 0, dim / 2)}, 2);
        const at::Tensor want =
            at::cat({turned * cos.to(at::kDouble) + crossed * sin.to(at::kDouble),
                     wide.narrow(2, dim, head - dim)},
                    2);
        const at::Tensor others = rows.narrow(2, 0, head).clone(),
                         values = rows.narrow(2, 2 * head, head).clone();
        const at::Tensor both = rows.clone();
        kernels::rotate_(x, {}, cos, sin, /*back=*/false);
        expect_close(x, want, rounding(dtype), "turned");
        EXPECT_TRUE(at::equal(rows.narrow(2, 0, head), others));
        EXPECT_TRUE(at::equal(rows.narrow(2, 2 * head, head), values));
        // Queries beside them in the same pass, as if each had been turned alone.
        kernels::rotate_(both.narrow(2, 0, head), both.narrow(2, head, head), cos, sin,
                         /*back=*/false);
        EXPECT_TRUE(at::equal(both.narrow(2, head, head), x));
        kernels::rotate_(others, {}, cos, sin, /*back=*/false);
        EXPECT_TRUE(at::equal(both.narrow(2, 0, head), others));
        EXPECT_TRUE(at::equal(both.narrow(2, 2 * head, head), values));
        const at::Tensor grad = random_on_gpu({tokens, heads, head}, dtype);
        want.backward(grad.to(at::kDouble));
        const at::Tensor back = grad.clone();
        kernels::rotate_(back, {}, cos, sin, /*back=*/true);
        expect_close(back, wide.grad(), rounding(dtype), "gradient");
      }
}

TEST(CrossEntropy, LossesAndGradient) {
  for (const auto dtype : kDtypes)
    for (const std::int64_t vocabulary : {5, 64, 1003, 50280})
      for (const double z_loss : {0.0, 1e-3}) {
        const std::int64_t rows = 19;
        const double scale = 0.5;
        const auto floats = at::TensorOptions().device(at::kCUDA).dtype(at::kFloat);
        const at::Tensor logits = random_on_gpu({rows, vocabulary}, dtype) * 5;
        const at::Tensor targets = at::randint(0, vocabulary, {rows}, floats.dtype(at::kLong));
        const at::Tensor weights = at::rand({rows}, floats);
        at::Tensor wide = logits.to(at::kDouble).requires_grad_();
        const at::Tensor scores = wide * scale, log_z = scores.logsumexp(1);
        const at::Tensor losses = log_z - scores.gather(1, targets.unsqueeze(1)).squeeze(1);
        const at::Tensor weighted = weights * (losses + z_loss * log_z.square());
        weighted.sum().backward();
        const kernels::RowLosses out{at::full({rows}, NAN, floats), at::full({rows}, NAN, floats)};
        const at::Tensor before = logits.clone();
        kernels::cross_entropy_(logits, targets, weights, scale, z_loss, /*with_gradient=*/false,
                                out);
        expect_close(out.losses, losses, 1e-5, "losses");
        expect_close(out.weighted, weighted, 1e-5, "weighted");
        EXPECT_TRUE(at::equal(logits, before));
        kernels::cross_entropy_(logits, targets, weights, scale, z_loss, /*with_gradient=*/true,
                                out);
        expect_close(out.losses, losses, 1e-5, "losses");
        expect_close(logits, wide.grad(), 5 * rounding(dtype), "gradient");
      }
}

}  // namespace
}  // namespace floe::kernels_test
