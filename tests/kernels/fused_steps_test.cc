// Fused steps with their gradients, and attention without padding, against plain ATen in fp64.
#include <cmath>
#include <functional>
#include <vector>

#include "floe/nn/attention.h"
#include "floe/nn/cross_entropy.h"
#include "floe/nn/fused.h"
#include "floe/nn/rotary.h"
#include "tests/kernels/compare.h"

namespace floe {
namespace {

using test::expect_close;
using test::kDtypes;
using test::random_on_gpu;
using test::rounding;

using Tensors = std::vector<at::Tensor>;

at::Tensor leaf(const at::Tensor& x, at::ScalarType dtype) {
  return x.detach().to(dtype).clone().requires_grad_();
}

// Values and gradients of `step` on these inputs against those of `plain` in fp64.
void compare(const Tensors& inputs, at::ScalarType dtype,
             const std::function<Tensors(const Tensors&)>& step,
             const std::function<Tensors(const Tensors&)>& plain, double tolerance) {
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
    const at::Tensor weight = random_on_gpu(got[i].sizes(), dtype);
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
            8 * rounding(dtype));
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

at::Tensor offsets_of(const std::vector<int>& lengths) {
  std::vector<int> offsets{0};
  for (const int length : lengths) offsets.push_back(offsets.back() + length);
  return at::tensor(offsets, at::kInt).to(at::kCUDA);
}

// Each span on its own, in fp64.
at::Tensor spans_apart(const Tensors& in, const std::vector<int>& queries,
                       const std::vector<int>& keys, bool causal, double scale) {
  Tensors out;
  std::int64_t q = 0, k = 0;
  for (std::size_t s = 0; s < queries.size(); ++s) {
    const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1); };
    const at::Tensor query = heads_first(in[0].narrow(0, q, queries[s]));
    if (keys[s] == 0) {
      out.push_back(at::zeros_like(in[0].narrow(0, q, queries[s])));
    } else {
      at::Tensor scores =
          query.matmul(heads_first(in[1].narrow(0, k, keys[s])).transpose(1, 2)) * scale;
      if (causal)
        scores = scores.masked_fill(
            at::ones({queries[s], keys[s]}, scores.options().dtype(at::kBool)).triu(1), -INFINITY);
      out.push_back(
          heads_first(scores.softmax(-1).matmul(heads_first(in[2].narrow(0, k, keys[s])))));
    }
    q += queries[s];
    k += keys[s];
  }
  return at::cat(out);
}

TEST(PackedAttention, CausalSpansOfAnyLength) {
  const std::vector<int> lengths{1, 32, 7, 200, 64};
  for (const std::int64_t dim : {64, 80, 128})
    compare(
        {random_on_gpu({304, 4, dim}, at::kFloat), random_on_gpu({304, 4, dim}, at::kFloat),
         random_on_gpu({304, 4, dim}, at::kFloat)},
        at::kBFloat16,
        [&](const Tensors& in) -> Tensors {
          const nn::Spans spans{offsets_of(lengths), 200};
          return {nn::packed_attention(in[0], in[1], in[2], spans, spans, true, 0.125)};
        },
        [&](const Tensors& in) -> Tensors {
          return {spans_apart(in, lengths, lengths, true, 0.125)};
        },
        2e-2);
}

TEST(PackedAttention, SpansWithoutKeysGiveZeros) {
  const std::vector<int> queries{5, 40, 3, 129, 1, 20}, keys{0, 64, 64, 64, 0, 64};
  compare(
      {random_on_gpu({198, 8, 64}, at::kFloat), random_on_gpu({256, 8, 64}, at::kFloat),
       random_on_gpu({256, 8, 64}, at::kFloat)},
      at::kBFloat16,
      [&](const Tensors& in) -> Tensors {
        return {nn::packed_attention(in[0], in[1], in[2], {offsets_of(queries), 129},
                                     {offsets_of(keys), 64}, false, 0.125)};
      },
      [&](const Tensors& in) -> Tensors { return {spans_apart(in, queries, keys, false, 0.125)}; },
      2e-2);
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
}  // namespace floe
