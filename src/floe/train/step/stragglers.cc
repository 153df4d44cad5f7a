#include "floe/train/step/stragglers.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "floe/core/str.h"

namespace floe::train {
namespace {

// In the order in which they travel.
constexpr std::array kTimes = {&RankTimes::data_s, &RankTimes::own_s, &RankTimes::gather_wait_s,
                               &RankTimes::reduce_wait_s};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_of_others(const std::vector<RankTimes>& ranks, std::size_t but,
                        double RankTimes::*time) {
  std::vector<double> values;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (r != but) values.push_back(ranks[r].*time);
  return median(std::move(values));
}

std::string in_seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", value);
  return text;
}

}  // namespace

std::vector<double> encode(const RankTimes& times, int rank, int world_size) {
  std::vector<double> numbers(kTimes.size() * static_cast<std::size_t>(world_size));
  const std::size_t at = kTimes.size() * static_cast<std::size_t>(rank);
  for (std::size_t i = 0; i < kTimes.size(); ++i) numbers[at + i] = times.*kTimes[i];
  return numbers;
}

std::vector<RankTimes> decode_times(std::span<const double> sums) {
  std::vector<RankTimes> ranks;
  for (std::size_t at = 0; at + kTimes.size() <= sums.size(); at += kTimes.size()) {
    RankTimes& times = ranks.emplace_back();
    for (std::size_t i = 0; i < kTimes.size(); ++i) times.*kTimes[i] = sums[at + i];
  }
  return ranks;
}

TimeRange range_of(const std::vector<RankTimes>& ranks, double RankTimes::*time) {
  if (ranks.empty()) return {};
  TimeRange found{ranks[0].*time, ranks[0].*time, 0};
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const double seconds = ranks[r].*time;
    found.least_s = std::min(found.least_s, seconds);
    if (seconds <= found.most_s) continue;
    found.most_s = seconds;
    found.most_rank = static_cast<int>(r);
  }
  return found;
}

Stragglers::Stragglers(int world_size, const Limits& limits)
    : limits_(limits), ranks_(static_cast<std::size_t>(world_size)) {}

std::optional<std::string> Stragglers::add(const std::vector<RankTimes>& ranks, double step_s,
                                           const std::function<std::string(int)>& name) {
  if (ranks.size() < 2 || ranks.size() != ranks_.size()) return std::nullopt;
  std::optional<std::string> sentence;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    Rank& rank = ranks_[r];
    const double others = median_of_others(ranks, r, &RankTimes::own_s);
    const bool slow = ranks[r].own_s > std::max(limits_.factor * others, others + limits_.least_s);
    if (!slow) {
      rank.mean = {};
      rank.slow_steps = 0;
      rank.slow_s = 0;
      continue;
    }
    rank.slow_s += step_s;
    const double share = 1.0 / ++rank.slow_steps;
    rank.mean.data_s += share * (ranks[r].data_s - rank.mean.data_s);
    rank.mean.own_s += share * (ranks[r].own_s - rank.mean.own_s);
    if (rank.told || sentence || rank.slow_steps < limits_.steps || rank.slow_s < limits_.seconds)
      continue;
    rank.told = true;
    const double more = rank.mean.own_s - others;
    const double more_data = rank.mean.data_s - median_of_others(ranks, r, &RankTimes::data_s);
    const auto waits = [&](double gather_s, double reduce_s) {
      return str(in_seconds(gather_s), " for parameters and ", in_seconds(reduce_s), " for sums");
    };
    sentence = str(
        name(static_cast<int>(r)),
        " is slower than the others, who wait for it: ", in_seconds(rank.mean.own_s),
        " of its own work in each of the last ", rank.slow_steps, " steps, the others ",
        in_seconds(others), "; in a step they wait ",
        waits(median_of_others(ranks, r, &RankTimes::gather_wait_s),
              median_of_others(ranks, r, &RankTimes::reduce_wait_s)),
        ", it ", waits(ranks[r].gather_wait_s, ranks[r].reduce_wait_s), "; ",
        more_data > more / 2
            ? str("its data is late (", in_seconds(rank.mean.data_s),
                  " of waiting for it): look at its disk or network, or raise data.threads")
            : std::string("its data comes in time: look at its host for other work, heat or a slow "
                          "device"));
  }
  return sentence;
}

}  // namespace floe::train
