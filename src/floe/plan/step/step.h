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
  std::int64_t sequences = 1, tokens = 0, images = 0;  // the latter two of each
  std::int64_t labels = -1;  // tokens of each that have one; -1: all but those of images
  std::int64_t source = -1;  // that it is from; -1: one of its own

  bool operator==(const BatchPart&) const = default;
};
using BatchParts = std::vector<BatchPart>;
// "64x32x1,32x256x6": sequences × tokens × images of one pass on one rank; images may be left out.
// Throws ConfigError.
BatchParts parse_batch(const std::string& text);
// The same as text, shorter for a batch of many lengths: "120 sequences, 8192 tokens, 64 images".
std::string text_of(const BatchParts& batch);

struct StepSettings {
  Machine machine;
  BatchParts batch;
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
// step: several phases, slices in host memory, images for a model that takes none, products in 8
// bits on a machine that has none.
StepReport plan_step(const PlanReport& report, const StepSettings& settings);

// Tables for people, behind those of the plan.
std::string to_text(const PlanReport& report, const StepReport& step);
nlohmann::ordered_json to_json(const PlanReport& report, const StepReport& step);

}  // namespace floe::plan
