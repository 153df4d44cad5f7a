// A step for each of a sample of the run's own batches: what they need on average, nearly always
// and at most.
//
//   const DataPlan plan = plan_data(report, machine, read_sample(of, 100));
//   std::cout << to_text(plan);
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/plan/choose/batches.h"
#include "floe/plan/step/step.h"

namespace floe::plan {

// Of one batch, or the mean of several.
struct BatchRow {
  std::int64_t batch = -1;  // its number, from 0; -1: a mean
  double sequences = 0, tokens = 0, images = 0, labels = 0;
  double kept = 0, peak = 0, needed = 0, host = 0;  // bytes, of the pass that needs most
  double seconds = 0, exposed = 0;                  // of an update of such batches
};

struct DataPlan {
  Machine machine;
  int rank = 0, world_size = 1;
  int accumulation = 1;        // batches of an update
  std::vector<BatchRow> rows;  // of every batch
  std::vector<std::pair<std::string, data::Counts>> counts;
  BatchRow mean, p99, worst;  // by the memory that they need
  // For a search: the pass that needs most memory, and of the batch whose time is nearest to the
  // mean the one that does.
  BatchParts largest, typical;

  bool fits() const { return worst.needed <= static_cast<double>(machine.memory.bytes); }
  // Of all ranks.
  double tokens_per_second(const BatchRow& row) const;
};

// Rehearses every batch. `report` has as many passes for an update as the batches make.
DataPlan plan_data(const PlanReport& report, const Machine& machine, const DataSample& sample);

std::string to_text(const DataPlan& plan);
nlohmann::ordered_json to_json(const DataPlan& plan);

}  // namespace floe::plan
