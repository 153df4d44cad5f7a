// Attention over packed sequences: each sequence as if it were alone, causal or not, with window,
// alibi, shared heads and padding, forward and backward.
#include "floe/nn/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace floe::nn::attention_test {
namespace {

at::Tensor offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return at::tensor(offsets, at::kLong);
}

// One sequence [T, H, D], written out: scores, masks, softmax.
at::Tensor plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const AttentionRule& rule) {
  const std::int64_t length = q.size(0), repeat = q.size(1) / k.size(1);
  const at::Tensor keys = k.repeat_interleave(repeat, 1), values = v.repeat_interleave(repeat, 1);
  at::Tensor scores = at::einsum("ihd,jhd->hij", {q, keys}) * rule.scale;
  const at::Tensor i = at::arange(length).unsqueeze(1), j = at::arange(length);
  if (rule.slopes.defined()) scores = scores - rule.slopes.view({-1, 1, 1}) * (i - j);
  at::Tensor hidden = rule.causal ? j > i : at::zeros({length, length}, at::kBool);
  if (rule.window > 0) hidden = hidden.logical_or(i - j >= rule.window);
  const at::Tensor weights =
      scores.masked_fill(hidden, -std::numeric_limits<float>::infinity()).softmax(-1);
  return at::einsum("hij,jhd->ihd", {weights, values}).flatten(1);
}

struct Rule {
  std::string name;
  std::int64_t heads, shared, window;
  bool alibi;
  bool causal = true;
};

class Attention : public testing::TestWithParam<Rule> {};

TEST_P(Attention, EachSequenceAsIfAlone) {
  const Rule& p = GetParam();
  const std::vector<std::int64_t> lengths{5, 1, 40, 0, 33, 70, 5, 130};
  const at::Tensor offsets = offsets_of(lengths);
  const std::int64_t tokens = offsets[-1].item<std::int64_t>(), dim = 8;
  at::manual_seed(1);
  const at::Tensor q = at::randn({tokens, p.heads, dim}).requires_grad_();
  const at::Tensor k = at::randn({tokens, p.shared, dim}).requires_grad_();
  const at::Tensor v = at::randn({tokens, p.shared, dim}).requires_grad_();
  const at::Tensor slope = at::randn({tokens, p.heads * dim});
  AttentionRule rule{.scale = 0.3, .causal = p.causal, .window = p.window};
  if (p.alibi) rule.slopes = alibi_slopes(p.heads, 8);

  std::vector<at::Tensor> alone;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] == 0) continue;
    const auto first = offsets[static_cast<std::int64_t>(s)].item<std::int64_t>();
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, lengths[s]); };
    alone.push_back(plain(part(q), part(k), part(v), rule));
  }
  const at::Tensor expected = at::cat(alone);
  (expected * slope).sum().backward();
  std::vector<at::Tensor> theirs;
  for (const at::Tensor& x : {q, k, v}) {
    theirs.push_back(x.grad().clone());
    at::Tensor(x).mutable_grad().reset();
  }

  const Segments segments(offsets, {}, at::kCPU);
  const auto masks = attention_masks(segments, rule, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor ours = attention(q, k, v, segments, masks, rule);
  EXPECT_LE((ours - expected).abs().max().item<double>(), 3e-6);
  (ours * slope).sum().backward();
  std::size_t i = 0;
  for (const at::Tensor& x : {q, k, v})
    EXPECT_LE((x.grad() - theirs[i++]).abs().max().item<double>(), 2e-5) << i;
}

// Padding inside of the sequences, at either end, is as if it were not there.
TEST_P(Attention, HiddenTokensAreNotThere) {
  const Rule& p = GetParam();
  const std::vector<std::int64_t> lengths{9, 4, 36}, before{3, 0, 5}, after{2, 7, 0};
  std::vector<std::int64_t> whole;
  for (std::size_t s = 0; s < lengths.size(); ++s)
    whole.push_back(before[s] + lengths[s] + after[s]);
  const at::Tensor offsets = offsets_of(whole);
  const std::int64_t tokens = offsets[-1].item<std::int64_t>(), dim = 8;
  at::Tensor attended = at::zeros({tokens}, at::kBool);
  for (std::size_t s = 0; s < lengths.size(); ++s)
    attended
        .narrow(0, offsets[static_cast<std::int64_t>(s)].item<std::int64_t>() + before[s],
                lengths[s])
        .fill_(true);
  at::manual_seed(2);
  const at::Tensor q = at::randn({tokens, p.heads, dim}), k = at::randn({tokens, p.shared, dim});
  const at::Tensor v = at::randn({tokens, p.shared, dim});
  AttentionRule rule{.scale = 0.3, .causal = p.causal, .window = p.window};
  if (p.alibi) rule.slopes = alibi_slopes(p.heads, 8);
  const auto run = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
                       const Segments& segments) {
    return attention(a, b, c, segments,
                     attention_masks(segments, rule, at::TensorOptions().dtype(at::kFloat)), rule);
  };
  const at::Tensor padded = run(q, k, v, Segments(offsets, attended, at::kCPU));
  EXPECT_TRUE(padded.isfinite().all().item<bool>());
  const at::Tensor real = attended.nonzero().squeeze(1);
  const at::Tensor packed =
      run(q.index_select(0, real), k.index_select(0, real), v.index_select(0, real),
          Segments(offsets_of(lengths), {}, at::kCPU));
  EXPECT_LE((padded.index_select(0, real) - packed).abs().max().item<double>(), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, Attention,
    testing::Values(Rule{"plain", 4, 4, 0, false}, Rule{"shared_heads", 6, 2, 0, false},
                    Rule{"window", 4, 4, 7, false}, Rule{"window_of_one", 4, 2, 1, false},
                    Rule{"alibi", 6, 6, 0, true}, Rule{"alibi_and_window", 4, 4, 9, true},
                    Rule{"both_ways", 6, 2, 0, false, false}),
    [](const auto& info) { return info.param.name; });

TEST(Attention, NoTokens) {
  const Segments segments(at::zeros({1}, at::kLong), {}, at::kCPU);
  const at::Tensor none = at::zeros({0, 2, 4});
  EXPECT_EQ(attention(none, none, none, segments, {}, {}).sizes(), (at::IntArrayRef{0, 8}));
}

TEST(Alibi, SlopesAsPublished) {
  EXPECT_TRUE(alibi_slopes(4, 8).allclose(at::tensor({0.25F, 0.0625F, 0.015625F, 0.00390625F})));
  // Six heads: every second of eight, then the others from the first.
  const at::Tensor eight = at::pow(2.0, -at::arange(1, 9).to(at::kFloat));
  EXPECT_TRUE(alibi_slopes(6, 8).allclose(
      eight.index_select(0, at::tensor({1, 3, 5, 7, 0, 2}, at::kLong))));
  EXPECT_EQ(alibi_slopes(1, 8).item<float>(), std::pow(2.0F, -8.0F));
}

}  // namespace
}  // namespace floe::nn::attention_test
