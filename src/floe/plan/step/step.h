// What one update of a planned run needs on a described machine: memory, all of it, and time.
//
//   const StepReport step = plan_step(report.subject, {machine, parse_batch("64x32x1,32x256x6")});
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/batch/packed_batch.h"
#include "floe/plan/machine/machine.h"
#include "floe/plan/machine/simulate.h"
#include "floe/plan/rehearsal/trace.h"
#include "floe/plan/report.h"

namespace floe::plan {

// Sequences of one length, with as many images each.
struct BatchPart {
  std::int64_t sequences = 1, tokens = 0, images = 0;
};
// "64x32x1,32x256x6": sequences × tokens × images of one pass on one rank; images may be left out.
// Throws ConfigError.
std::vector<BatchPart> parse_batch(const std::string& text);

struct StepSettings {
  Machine machine;
  std::vector<BatchPart> batch;
};

struct StepReport {
  StepSettings settings;
  Trace trace;
  StepTime time;
  int world_size = 1;
  int num_nodes = 1;
  double tflops = 0;                 // that a rank's products could reach
  std::int64_t optimizer_state = 0;  // beside the trace's memory, all the time
  std::int64_t host_bytes = 0;       // at most, of activations

  // What the program allocates on the GPU at most, ...
  std::int64_t peak() const { return trace.memory.peak + optimizer_state; }
  // ... and what the GPU must have: with its context and what the allocator cannot use; a machine
  // of cores must have it for each rank that it has.
  std::int64_t needed() const;
  bool fits() const { return needed() <= settings.machine.memory.bytes; }
  // What forward leaves for backward, without gathered parameters.
  std::int64_t kept() const;
  double tokens_per_second() const;  // of all ranks
  // Of what `tflops` would allow.
  double utilisation() const;
};

// Rehearses a pass of `report` and simulates an update. Throws ConfigError for what has no such
// step: several phases, slices in host memory, images for a model that takes none.
StepReport plan_step(const PlanReport& report, const StepSettings& settings);

// Tables for people, behind those of the plan.
std::string to_text(const PlanReport& report, const StepReport& step);
nlohmann::ordered_json to_json(const PlanReport& report, const StepReport& step);

}  // namespace floe::plan
