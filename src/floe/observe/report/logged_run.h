// What a run has left behind, as far as it can be read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/observe/metrics/run_status.h"
#include "floe/observe/report/chart.h"
#include "floe/observe/report/logged_diagnostics.h"
#include "floe/observe/report/logged_scores.h"

namespace floe::report {

// RUN/logs/rank_R.log, cut down to what a reader looks for first.
struct RankLog {
  std::int64_t rank = 0;
  std::int64_t num_lines = 0, num_warnings = 0, num_errors = 0;
  std::vector<std::string> notable;  // the first warnings and errors
  std::vector<std::string> tail;     // the last lines
};

// rank_R.log of this folder, by rank; none when there is no such folder.
std::vector<RankLog> read_rank_logs(const std::string& folder);

struct NamedSeries {
  std::string name;
  Series series;
};

// A text value, other than the phase, at the step where it changed.
struct Event {
  std::int64_t step = 0;
  std::string name, text;
};

struct LoggedRun {
  std::string folder, name;

  std::vector<std::pair<std::string, std::string>> settings;  // {"train.steps", "100"}

  std::vector<NamedSeries> series;  // in order of first appearance
  std::vector<Event> events;
  Phases phases;
  std::int64_t num_records = 0, first_step = 0, last_step = 0;
  double first_time_s = 0, last_time_s = 0;  // unix time; 0 when unknown
  std::int64_t num_damaged_lines = 0;

  std::optional<observe::RunStatus> status;  // how it ended, or how far it said it was
  std::optional<LoggedDiagnostics> diagnostics;
  std::vector<RankLog> logs;
  std::vector<LoggedScore> scores;

  std::vector<std::string> problems;  // what is missing or damaged, one sentence each

  const Series* find(const std::string& series_name) const;
  const std::string* setting(const std::string& setting_name) const;
};

// loss or loss_SOURCE; the loss scale of fp16 is none.
bool is_loss(const std::string& series_name);

// Throws DataError when there is no such folder or nothing of a run in it.
LoggedRun read_logged_run(const std::string& folder);

}  // namespace floe::report
