// Fused steps with their gradients against plain ATen in fp64.
#include <cmath>

#include "floe/kernels/eight_bit/fp8_product.h"
#include "floe/nn/cross_entropy.h"
#include "floe/nn/fused.h"
#include "floe/nn/rotary.h"
#include "tests/kernels/gradients.h"

namespace floe::fused_steps_test {
namespace {

using test::compare;
using test::kDtypes;
using test::random_on_gpu;
using test::rounding;
using test::Tensors;

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias);
}

TEST(FusedSteps, AddNorm) {
  for (const auto dtype : kDtypes)
    compare(
        {random_on_gpu({33, 256}, at::kFloat), random_on_gpu({33, 256}, at::kFloat),
         random_on_gpu({256}, at::kFloat), random_on_gpu({256}, at::kFloat)},
        dtype,
        [](const Tensors& in) -> Tensors {
          const auto [y, z] = nn::add_norm(in[0], in[1], {in[2], in[3]});
          return {y, z};
        },
        [](const Tensors& in) -> Tensors {
          return {in[0] + in[1], plain_norm(in[0] + in[1], in[2], in[3])};
        },
        5 * rounding(dtype));
}

TEST(FusedSteps, AddRmsNorm) {
  const nn::NormWeights rms{.eps = 1e-6, .centred = false};
  for (const auto dtype : kDtypes)
    compare(
        {random_on_gpu({33, 256}, at::kFloat), random_on_gpu({33, 256}, at::kFloat),
         random_on_gpu({256}, at::kFloat), random_on_gpu({64, 256}, at::kFloat)},
        dtype,
        [&](const Tensors& in) -> Tensors {
          nn::NormWeights norm = rms;
          norm.weight = in[2];
          const auto [y, z] = nn::add_norm(in[0], in[1], norm);
          const auto [on, projected] = nn::norm_linear(y, norm, in[3]);
          return {on * 2, z, projected};
        },
        [&](const Tensors& in) -> Tensors {
          const at::Tensor y = in[0] + in[1], z = at::rms_norm(y, {256}, in[2], 1e-6);
          return {y * 2, z, at::linear(z, in[3])};
        },
        6 * rounding(dtype));
}

TEST(FusedSteps, NormAlone) {
  for (const auto dtype : kDtypes)
    compare(
        {random_on_gpu({5, 7, 128}, at::kFloat), random_on_gpu({128}, at::kFloat)}, dtype,
        [](const Tensors& in) -> Tensors {
          const auto [y, z] = nn::add_norm(in[0], {}, {in[1], {}});
          return {y * 2, z};
        },
        [](const Tensors& in) -> Tensors {
          return {in[0] * 2, plain_norm(in[0], in[1], {})};
        },
        5 * rounding(dtype));
}

// Backward has the normalised rows in 8 bits only: they have a part in |cos| of the slope, about a
// sixteenth with 256 columns, and are off by a sixteenth of themselves at most. A norm that forgot
// that part would be off by the sixteenth itself.
TEST(FusedSteps, AddCodedNorm) {
  for (const bool centred : {true, false})
    for (const auto dtype : kDtypes) {
      const at::Tensor weight = random_on_gpu({256}, at::kFloat).to(dtype);
      const at::Tensor bias = centred ? random_on_gpu({256}, at::kFloat).to(dtype) : at::Tensor();
      const nn::NormWeights norm{weight, bias, 1e-5, centred};
      compare(
          {random_on_gpu({33, 256}, at::kFloat), random_on_gpu({33, 256}, at::kFloat)}, dtype,
          [&](const Tensors& in) -> Tensors {
            const nn::CodedNorm both = nn::add_coded_norm(in[0], in[1], norm);
            const auto codes = kernels::to_coded_rows(both.normed.detach(), at::kFloat8_e4m3fn, {});
            EXPECT_TRUE(both.codes.view(at::kByte).equal(codes.codes.view(at::kByte)));
            EXPECT_TRUE(both.code_scales.equal(codes.scales));
            return {both.stream * 2, both.normed};
          },
          [&](const Tensors& in) -> Tensors {
            const at::Tensor y = in[0] + in[1], w = weight.to(y.scalar_type());
            return {y * 2, centred ? plain_norm(y, w, bias.to(y.scalar_type()))
                                   : at::rms_norm(y, {256}, w, 1e-5)};
          },
          5 * rounding(dtype) + 1.0 / (16 * 16));
    }
}

TEST(FusedSteps, GatedSilu) {
  for (const auto dtype : kDtypes)
    compare(
        {random_on_gpu({31, 77}, at::kFloat), random_on_gpu({31, 77}, at::kFloat)}, dtype,
        [](const Tensors& in) -> Tensors { return {nn::gated_silu(in[0], in[1])}; },
        [](const Tensors& in) -> Tensors { return {at::silu(in[0]) * in[1]}; },
        3 * rounding(dtype));
}

TEST(FusedSteps, Rotate) {
  const nn::RotarySpec spec{.dim = 32};
  const at::Tensor positions = at::arange(40, at::kLong).to(at::kCUDA);
  for (const auto dtype : kDtypes)
    compare(
        {random_on_gpu({40, 3, 48}, at::kFloat)}, dtype,
        [&](const Tensors& in) -> Tensors {
          return {nn::rotate(in[0], nn::rotary_angles(spec, positions, dtype))};
        },
        [&](const Tensors& in) -> Tensors {
          const auto angles = nn::rotary_angles(spec, positions, dtype);
          return {nn::rotate(in[0], {angles.cos.to(at::kDouble), angles.sin.to(at::kDouble)})};
        },
        4 * rounding(dtype));
}

TEST(FusedSteps, Gelu) {
  for (const auto dtype : kDtypes)
    compare(
        {random_on_gpu({31, 77}, at::kFloat)}, dtype,
        [](const Tensors& in) -> Tensors { return {nn::gelu(in[0])}; },
        [](const Tensors& in) -> Tensors { return {at::gelu(in[0])}; }, 2 * rounding(dtype));
}

TEST(FusedSteps, NormLinear) {
  for (const auto dtype : kDtypes)
    compare(
        {random_on_gpu({4, 9, 128}, at::kFloat), random_on_gpu({128}, at::kFloat),
         random_on_gpu({128}, at::kFloat), random_on_gpu({64, 128}, at::kFloat)},
        dtype,
        [](const Tensors& in) -> Tensors {
          const auto [x, y] = nn::norm_linear(in[0], {in[1], in[2]}, in[3]);
          return {x * 3, y};
        },
        [](const Tensors& in) -> Tensors {
          return {in[0] * 3, at::linear(plain_norm(in[0], in[1], in[2]), in[3])};
        },
        6 * rounding(dtype));
}

// Images that the resampler looks at: norm and layer train, what they read does not.
TEST(FusedSteps, NormLinearOfWhatDoesNotTrain) {
  for (const auto dtype : kDtypes) {
    const at::Tensor x = random_on_gpu({7, 33, 128}, dtype) + 0.5;
    compare(
        {random_on_gpu({128}, at::kFloat), random_on_gpu({128}, at::kFloat),
         random_on_gpu({64, 128}, at::kFloat)},
        dtype,
        [&](const Tensors& in) -> Tensors {
          return {nn::norm_linear(x, {in[0], in[1]}, in[2]).second};
        },
        [&](const Tensors& in) -> Tensors {
          return {at::linear(plain_norm(x.to(at::kDouble), in[0], in[1]), in[2])};
        },
        6 * rounding(dtype));
  }
}

TEST(FusedSteps, GatedLinearAndGeluLinear) {
  for (const auto dtype : kDtypes)
    for (const bool gelu : {false, true})
      for (const bool gated : {false, true}) {
        Tensors inputs{random_on_gpu({50, 64}, at::kFloat), random_on_gpu({50, 128}, at::kFloat),
                       random_on_gpu({64, 128}, at::kFloat)};
        if (gated) inputs.push_back(at::full({1}, 0.4, inputs[0].options()));
        const auto gate = [gated](const Tensors& in) { return gated ? in[3] : at::Tensor(); };
        compare(
            inputs, dtype,
            [&](const Tensors& in) -> Tensors {
              return {gelu ? nn::add_gated_gelu_linear(in[0], in[1], in[2], gate(in))
                           : nn::add_gated_linear(in[0], in[1], in[2], gate(in))};
            },
            [&](const Tensors& in) -> Tensors {
              const at::Tensor branch = at::linear(gelu ? at::gelu(in[1]) : in[1], in[2]);
              return {(gated ? branch * in[3].tanh() : branch) + in[0]};
            },
            8 * rounding(dtype), test::gradient_along);
      }
}

// A closed gate lets nothing through, to the bit, and still learns.
TEST(FusedSteps, ClosedGate) {
  const at::Tensor x = random_on_gpu({40, 64}, at::kBFloat16),
                   u = random_on_gpu({40, 128}, at::kBFloat16);
  const at::Tensor weight = random_on_gpu({64, 128}, at::kBFloat16);
  const at::Tensor gate = at::zeros({1}, x.options()).requires_grad_();
  const at::Tensor y = nn::add_gated_gelu_linear(x, u, weight, gate);
  EXPECT_TRUE(at::equal(y, x));
  const at::Tensor grad = random_on_gpu({40, 64}, at::kBFloat16);
  y.backward(grad);
  const at::Tensor want =
      (grad.to(at::kDouble) * at::linear(at::gelu(u.to(at::kDouble)), weight.to(at::kDouble)))
          .sum();
  // The gradient itself is rounded to bf16; what it sums has random signs.
  const double scale = std::sqrt(grad.numel()) * 128;
  EXPECT_NEAR(gate.grad().item<double>(), want.item<double>(),
              3e-4 * scale + 4e-3 * std::abs(want.item<double>()));
}

TEST(FusedSteps, RotateInside) {
  for (const auto dtype : kDtypes) {
    const std::int64_t tokens = 21, heads = 4, dim = 16;
    nn::RotarySpec spec;
    spec.dim = dim;
    const auto places = at::arange(tokens, at::TensorOptions().device(at::kCUDA).dtype(at::kLong));
    const auto angles = nn::rotary_angles(spec, places, dtype);
    const nn::RotaryAngles wide{angles.cos.to(at::kDouble), angles.sin.to(at::kDouble)};
    compare(
        {random_on_gpu({tokens, heads * 3 * dim}, at::kFloat)}, dtype,
        [&](const Tensors& in) -> Tensors {
          return {nn::rotate_inside(in[0], angles, {0, heads, 3 * dim}, {dim, heads, 3 * dim})};
        },
        [&](const Tensors& in) -> Tensors {
          const auto parts = in[0].view({tokens, heads, 3 * dim}).chunk(3, -1);
          return {at::cat({nn::rotate(parts[0], wide), nn::rotate(parts[1], wide), parts[2]}, 2)
                      .view({tokens, -1})};
        },
        2 * rounding(dtype));
  }
}

// Turned back in place, but only where nobody else has the gradient.
TEST(FusedSteps, RotateInsideLeavesTheGradientsOfOthersAlone) {
  const std::int64_t tokens = 21, heads = 4, dim = 16;
  const auto places = at::arange(tokens, at::TensorOptions().device(at::kCUDA).dtype(at::kLong));
  const auto angles = nn::rotary_angles({.dim = dim}, places, at::kFloat);
  const auto turned = [&](const at::Tensor& x) {
    return nn::rotate_inside(x * 1, angles, {0, heads, dim}, {heads * dim, heads, dim});
  };
  const at::Tensor x = random_on_gpu({tokens, 2 * heads * dim}, at::kFloat).requires_grad_();
  const at::Tensor grad = random_on_gpu(x.sizes(), at::kFloat), as_given = grad.clone();
  at::Tensor watched = turned(x);
  watched.retain_grad();
  watched.backward(grad);
  EXPECT_TRUE(grad.equal(as_given));
  EXPECT_TRUE(watched.grad().equal(as_given));
  const at::Tensor want = x.grad().clone();
  EXPECT_FALSE(want.equal(as_given));
  x.mutable_grad().reset();
  (turned(x) * as_given).sum().backward();  // this one is nobody else's
  EXPECT_TRUE(x.grad().equal(want));
}

TEST(LossWithoutLogits, OnTheGpu) {
  for (const auto dtype : kDtypes) {
    const std::int64_t count = 70, dim = 64, vocabulary = 1000;
    const auto longs = at::TensorOptions().device(at::kCUDA).dtype(at::kLong);
    const at::Tensor targets = at::randint(0, vocabulary, {count}, longs);
    const at::Tensor weights = at::rand({count}, longs.dtype(at::kFloat));
    const at::Tensor row_ids = at::tensor({3, 997}, at::kLong).to(at::kCUDA);
    compare(
        {random_on_gpu({count, dim}, at::kFloat),
         random_on_gpu({vocabulary, dim}, at::kFloat) * 0.2,
         random_on_gpu({2, dim}, at::kFloat) * 0.2},
        dtype,
        [&](const Tensors& in) -> Tensors {
          return {
              nn::cross_entropy(in[0], {in[1], in[2], row_ids, 0.7}, targets, weights, 1e-3).first};
        },
        [&](const Tensors& in) -> Tensors {
          const at::Tensor table = in[1].index_copy(0, row_ids, in[2]);
          const at::Tensor scores = in[0].matmul(table.t()) * 0.7, log_z = scores.logsumexp(1);
          const at::Tensor loss = log_z - scores.gather(1, targets.unsqueeze(1)).squeeze(1);
          return {(weights * (loss + 1e-3 * log_z.square())).sum()};
        },
        8 * rounding(dtype));
  }
}

}  // namespace
}  // namespace floe::fused_steps_test
