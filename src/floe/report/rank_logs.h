// The logs of a run's ranks, cut down to what a reader looks for first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace floe::report {

// RUN/logs/rank_R.log
struct RankLog {
  std::int64_t rank = 0;
  std::int64_t num_lines = 0, num_warnings = 0, num_errors = 0;
  std::vector<std::string> notable;  // the first warnings and errors
  std::vector<std::string> tail;     // the last lines
};

// rank_R.log of this folder, by rank; none when there is no such folder.
std::vector<RankLog> read_rank_logs(const std::string& folder);

}  // namespace floe::report
