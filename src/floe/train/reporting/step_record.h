// What one step came to, as people and loggers see it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/comm/world.h"
#include "floe/data/loader/loader.h"
#include "floe/observe/metrics/progress.h"
#include "floe/observe/sinks/logger.h"
#include "floe/train/step/step_sums.h"
#include "floe/train/step/time_account.h"

namespace floe::train {

struct StepRecord {
  std::int64_t step = 0, epoch = 0;
  std::string phase;                          // that made it; empty when there are no several
  double lr = 0, gradient_norm = 0;           // the norm is global, before clipping
  std::vector<StepTotals::OfSource> sources;  // losses are means over ranks, before weights
  std::int64_t tokens = 0;                    // all ranks together
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

metrics::Record to_metrics(const StepRecord& record, int world_size);
metrics::Progress to_progress(const StepRecord& record, int world_size);

// What the ranks of a run have to say about their data together. Through the world's store, apart from
// the collectives of training.

using SourceCounts = std::vector<std::pair<std::string, data::Counts>>;

// Collective: the counts of all ranks, which have the same sources.
SourceCounts sum_over_ranks(const SourceCounts& own, comm::World& world);

// Collective: a line per source, of all ranks.
std::string data_report(const data::Loader& loader, comm::World& world);

// Collective: says it when ranks have the same prepared batches under names of their own.
void warn_of_same_batches(const data::Loader& loader, comm::World& world, const std::string& key);

}  // namespace floe::train
