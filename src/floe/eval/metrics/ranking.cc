#include "floe/eval/metrics/ranking.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "floe/core/error.h"

namespace floe::eval {

double roc_auc(std::span<const double> scores, const std::vector<bool>& positive) {
  require(scores.size() == positive.size(), "there are ", scores.size(), " scores of ",
          positive.size(), " samples");
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
  // Pairs, in halves: a tie is one of two.
  double halves = 0, below = 0, positives = 0;
  for (std::size_t first = 0; first < order.size();) {
    double of_value[2] = {0, 0};
    std::size_t last = first;
    for (; last < order.size() && scores[order[last]] == scores[order[first]]; ++last)
      ++of_value[positive[order[last]] ? 1 : 0];
    halves += of_value[1] * (2 * below + of_value[0]);
    below += of_value[0];
    positives += of_value[1];
    first = last;
  }
  if (below == 0 || positives == 0) return std::numeric_limits<double>::quiet_NaN();
  return halves / (2 * below * positives);
}

std::vector<double> softmax(std::span<const double> log_probs) {
  if (log_probs.empty()) return {};
  const double largest = *std::max_element(log_probs.begin(), log_probs.end());
  std::vector<double> out;
  double sum = 0;
  for (const double value : log_probs) sum += out.emplace_back(std::exp(value - largest));
  for (double& value : out) value /= sum;
  return out;
}

}  // namespace floe::eval
