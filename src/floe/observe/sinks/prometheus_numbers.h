// The latest numbers of a run in the text format of Prometheus.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "floe/observe/metrics/record.h"
#include "floe/observe/sinks/sink.h"

namespace floe::observe {

// Threads: any.
class PrometheusNumbers {
 public:
  explicit PrometheusNumbers(const RunInfo& run);

  void take(const Record& record);
  void saved(double time_s);
  void finish(int exit_code);

  // `file`: for readers at a later time, so without ages, which grow; a file has the times they are
  // counted from.
  enum class For { file, now };
  std::string text(For reader) const;

 private:
  void set_phase(const std::string& phase);

  const std::string run_, version_;
  const double start_s_;
  const std::int64_t restarts_;
  mutable std::mutex mutex_;  // of what follows
  std::int64_t step_;
  std::optional<double> step_s_, saved_s_;  // unix times
  std::optional<int> exit_code_;            // of a run that has ended
  std::string phase_;
  std::map<std::size_t, std::map<std::string, double>> values_;  // the latest, by metric and source
};

}  // namespace floe::observe
