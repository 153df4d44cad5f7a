// What one step came to, as people and sinks see it. It stands here rather than in observe/ because
// it is made of what the trainer measures: its time account and the sums of a step.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/observe/metrics/progress.h"
#include "floe/observe/metrics/record.h"
#include "floe/train/step/step_sums.h"
#include "floe/train/step/stragglers.h"
#include "floe/train/step/time_account.h"

namespace floe::train {

struct StepRecord {
  std::int64_t step = 0, epoch = 0;
  std::string phase;                          // that made it; empty when there are no several
  double lr = 0, gradient_norm = 0;           // the norm is global, before clipping
  std::vector<StepTotals::OfSource> sources;  // losses are means over ranks, before weights
  std::int64_t tokens = 0;                    // all ranks together
  std::vector<RankTimes> rank_times;          // of the step before, by rank
  std::int64_t skipped = 0, bad_samples = 0;  // so far, all ranks together
  TimeAccount::Times times;           // since the record before, or the beginning of training
  std::optional<double> loss_scale;   // with fp16
  std::optional<double> noise_scale;  // see noise_scale.h
  double teraflops = 0;               // per second and rank; 0: unknown
  std::optional<double> mfu;
  std::int64_t memory_peak = 0;                        // of this rank, since the last record
  std::vector<std::pair<std::string, double>> others;  // of validation and diagnostics
  std::int64_t validated_step = 0;      // after which validation was; 0: there was none
  nlohmann::ordered_json phase_switch;  // before it; null: there was none
  std::string ended_early;              // why it is the run's last; empty: it is not
};

observe::Record to_metrics(const StepRecord& record, int world_size);
observe::Progress to_progress(const StepRecord& record, int world_size);

}  // namespace floe::train
