// The loss without logits: equal to torch's own cross entropy of whole logits, in a chunk's memory.
#include "floe/nn/cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "floe/observe/diagnostics/memory_counter.h"

namespace floe::nn::cross_entropy_test {
namespace {

struct Problem {
  at::Tensor hidden, weight, rows, row_ids, targets, weights, bias;
};

Problem make_problem(std::int64_t labels, std::int64_t dim, std::int64_t vocab, bool with_rows) {
  at::manual_seed(static_cast<std::uint64_t>(labels + vocab));
  Problem p;
  p.hidden = at::randn({labels, dim}).requires_grad_();
  p.weight = at::randn({vocab, dim}).mul_(0.5).requires_grad_();
  if (with_rows) {
    p.rows = at::randn({2, dim}).requires_grad_();
    p.row_ids = at::tensor({vocab - 2, std::int64_t{3}}, at::kLong);
  }
  p.targets = at::randint(0, vocab, {labels}, at::kLong);
  if (with_rows && labels > 4)
    p.targets.narrow(0, 0, 4).copy_(
        at::tensor({vocab - 2, std::int64_t{3}, vocab - 2, std::int64_t{3}}, at::kLong));
  p.weights = at::rand({labels});
  return p;
}

// The plain way: a whole table, whole logits, torch's own function, in double precision.
struct Plain {
  at::Tensor loss, of_token;
  std::vector<at::Tensor> gradients;  // of hidden, weight, rows and bias
};

Plain plain(const Problem& p, double scale, double z_loss) {
  const auto leaf = [](const at::Tensor& x) { return x.detach().to(at::kDouble).requires_grad_(); };
  const at::Tensor hidden = leaf(p.hidden), weight = leaf(p.weight);
  at::Tensor table = weight, rows;
  if (p.rows.defined()) {
    rows = leaf(p.rows);
    table = weight.index_copy(0, p.row_ids, rows);
  }
  const at::Tensor bias = p.bias.defined() ? leaf(p.bias) : at::Tensor();
  at::Tensor scores = at::linear(hidden, table);
  if (bias.defined()) scores = scores + bias;
  scores = scores * scale;
  Plain result;
  result.of_token = at::cross_entropy_loss(scores, p.targets, {}, at::Reduction::None);
  at::Tensor each = result.of_token;
  if (z_loss != 0) each = each + z_loss * scores.logsumexp(1).square();
  result.loss = (p.weights * each).sum();
  result.loss.backward();
  result.gradients = {hidden.grad(), weight.grad()};
  if (rows.defined()) result.gradients.push_back(rows.grad());
  if (bias.defined()) result.gradients.push_back(bias.grad());
  return result;
}

double largest(const at::Tensor& x) { return x.abs().max().item<double>(); }

void check(const Problem& p, double scale, double z_loss, double bound = 2e-6) {
  const Plain expected = plain(p, scale, z_loss);
  const OutputWeights output{p.weight, p.rows, p.row_ids, scale, p.bias};
  const auto [loss, of_token] = cross_entropy(p.hidden, output, p.targets, p.weights, z_loss);
  EXPECT_FALSE(of_token.requires_grad());
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  (loss * 3).backward();  // a factor behind the loss
  EXPECT_NEAR(loss.item<double>(), expected.loss.item<double>(),
              2e-6 * std::abs(expected.loss.item<double>()));
  EXPECT_LE(largest(of_token - expected.of_token),
            2e-6 * std::max(1.0, largest(expected.of_token)));
  std::size_t i = 0;
  for (const at::Tensor& tensor : {p.hidden, p.weight, p.rows, p.bias}) {
    if (!tensor.defined()) continue;
    ASSERT_TRUE(tensor.grad().defined()) << i;
    EXPECT_LE(largest(tensor.grad() / 3 - expected.gradients[i]),
              bound * largest(expected.gradients[i]))
        << i;
    ++i;
  }
}

TEST(CrossEntropy, EqualsTorch) { check(make_problem(37, 16, 301, false), 1, 0); }
TEST(CrossEntropy, ScaleAndZLoss) { check(make_problem(37, 16, 301, false), 0.3, 1e-2); }
TEST(CrossEntropy, RowsApart) { check(make_problem(37, 16, 301, true), 1, 0); }
TEST(CrossEntropy, RowsApartWithScaleAndZLoss) {
  check(make_problem(37, 16, 301, true), 0.3, 1e-2);
}
TEST(CrossEntropy, Bias) {
  Problem p = make_problem(37, 16, 301, false);
  p.bias = at::randn({301}).requires_grad_();
  check(p, 0.3, 1e-2);
}
// 65537 * 300 elements: more than one chunk of 2^24, the last one smaller.
TEST(CrossEntropy, SeveralChunks) { check(make_problem(300, 8, 65537, true), 1, 1e-3, 2e-5); }

TEST(CrossEntropy, TrainedRowsAreTheMaskedGradientOfATable) {
  Problem p = make_problem(37, 16, 301, true);
  const at::Tensor table =
      p.weight.detach().index_copy(0, p.row_ids, p.rows.detach()).requires_grad_();
  const at::Tensor scores = at::linear(p.hidden, table);
  (p.weights * at::cross_entropy_loss(scores, p.targets, {}, at::Reduction::None)).sum().backward();
  p.weight = p.weight.detach();  // frozen
  cross_entropy(p.hidden, {p.weight, p.rows, p.row_ids}, p.targets, p.weights).first.backward();
  EXPECT_FALSE(p.weight.grad().defined());
  const at::Tensor kept = table.grad().index_select(0, p.row_ids);
  EXPECT_LE((p.rows.grad() - kept).abs().max().item<double>(),
            1e-6 * kept.abs().max().item<double>());
}

TEST(CrossEntropy, NothingToPredict) {
  const Problem p = make_problem(0, 4, 11, true);
  const auto [loss, of_token] =
      cross_entropy(p.hidden, {p.weight, p.rows, p.row_ids}, p.targets, p.weights);
  EXPECT_EQ(loss.item<float>(), 0);
  EXPECT_EQ(of_token.numel(), 0);
  loss.backward();
  EXPECT_EQ(p.rows.grad().abs().max().item<float>(), 0);
  EXPECT_EQ(p.weight.grad().abs().max().item<float>(), 0);
}

// Sure of a wrong token: the loss is finite and right where a naive softmax would overflow.
TEST(CrossEntropy, LargeLogits) {
  Problem p = make_problem(5, 4, 7, false);
  p.hidden = (p.hidden.detach() * 1e4).requires_grad_();
  check(p, 1, 0);
}

TEST(CrossEntropy, BackwardDoesNotReadTheWeight) {
  const Problem p = make_problem(9, 4, 23, true);
  const at::Tensor loss =
      cross_entropy(p.hidden, {p.weight, p.rows, p.row_ids}, p.targets, p.weights).first;
  {
    const at::NoGradGuard no_grad;
    p.weight.fill_(std::nan(""));
    p.rows.fill_(std::nan(""));
  }
  loss.backward();
  EXPECT_TRUE(p.hidden.grad().isfinite().all().item<bool>());
  EXPECT_TRUE(p.weight.grad().isfinite().all().item<bool>());
}

TEST(CrossEntropy, HalfPrecisionSumsInFp32) {
  Problem p = make_problem(200, 32, 5000, true);
  const double exact = plain(p, 1, 0).loss.item<double>();
  for (at::Tensor* tensor : {&p.hidden, &p.weight, &p.rows})
    *tensor = tensor->detach().to(at::kBFloat16).requires_grad_();
  const auto [loss, of_token] =
      cross_entropy(p.hidden, {p.weight, p.rows, p.row_ids}, p.targets, p.weights);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(of_token.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), exact, 5e-3 * exact);
  loss.backward();
  EXPECT_EQ(p.hidden.grad().scalar_type(), at::kBFloat16);
  EXPECT_TRUE(p.hidden.grad().isfinite().all().item<bool>());
}

// Note [Loss without logits]: a chunk's logits (and what torch makes of them) exist, never all.
TEST(CrossEntropy, MemoryOfAChunk) {
  auto& memory = diagnostics::MemoryCounter::install();
  constexpr std::int64_t kLabels = 4096, kVocab = 50000, kDim = 16;
  constexpr std::int64_t kChunkBytes = std::int64_t{4} << 24;
  constexpr std::int64_t kAllBytes = 4 * kLabels * kVocab;
  static_assert(kAllBytes > 10 * kChunkBytes);
  const at::Tensor hidden = at::randn({kLabels, kDim}).requires_grad_();
  const at::Tensor weight = at::randn({kVocab, kDim}), rows = at::randn({2, kDim}).requires_grad_();
  const at::Tensor row_ids = at::tensor({kVocab - 2, kVocab - 1}, at::kLong);
  const at::Tensor targets = at::randint(0, kVocab, {kLabels}, at::kLong),
                   weights = at::ones({kLabels});
  const auto before = memory.current_bytes();
  memory.reset_peak();
  const at::Tensor loss = cross_entropy(hidden, {weight, rows, row_ids}, targets, weights).first;
  EXPECT_LE(memory.peak_bytes() - before, 4 * kChunkBytes);
  // What waits for backward: the gradient of the hidden states and of the rows.
  const auto kept = memory.current_bytes() - before;
  EXPECT_LE(kept, 4 * (kLabels * kDim + 2 * kDim) + 4 * kLabels + 4096);
  memory.reset_peak();
  loss.backward();
  EXPECT_LE(memory.peak_bytes() - before, 4 * (4 * kLabels * kDim) + 8 * kLabels);
}

TEST(CrossEntropy, EvaluationComputesNoGradients) {
  auto& memory = diagnostics::MemoryCounter::install();
  const Problem p = make_problem(64, 64, 20000, false);
  const at::NoGradGuard no_grad;
  const auto before = memory.current_bytes();
  const auto [loss, of_token] = cross_entropy(p.hidden, {p.weight}, p.targets, p.weights);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_LE(memory.current_bytes() - before, 1024) << "nothing is kept for a backward";
}

TEST(Logits, RowsStandInForTheTable) {
  const Problem p = make_problem(6, 4, 23, true);
  const at::Tensor expected = at::linear(p.hidden, p.weight.index_copy(0, p.row_ids, p.rows)) * 0.5;
  EXPECT_LE(
      (logits(p.hidden, {p.weight, p.rows, p.row_ids, 0.5}) - expected).abs().max().item<double>(),
      1e-6);
}

}  // namespace
}  // namespace floe::nn::cross_entropy_test
