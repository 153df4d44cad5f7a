// Shares in words.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "floe/core/str.h"
#include "floe/shard/plan/plan.h"

namespace floe::diag {

// "62%"
template <class Number>
std::string percent(Number part, Number whole) {
  const double share =
      whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
  return str(std::lround(share), "%");
}

// A text of several lines as its lines.

// Without the line ends; an end behind the last line begins no other.
inline std::vector<std::string> text_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

// What each rank's slices of the parameters amount to, by the plan: every rank knows it of all.

struct RankBytes {
  int rank = 0;
  std::int64_t trainable_bytes = 0, frozen_bytes = 0;  // held, with the zeros that pad slices
  std::int64_t padding_bytes = 0;                      // of them: such zeros
  std::int64_t held_bytes() const { return trainable_bytes + frozen_bytes; }
  std::int64_t used_bytes() const { return held_bytes() - padding_bytes; }
};

// By rank.
std::vector<RankBytes> rank_bytes(const shard::ShardPlan& plan);

}  // namespace floe::diag
