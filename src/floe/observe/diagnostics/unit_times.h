// Where the time of steps goes, unit by unit.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/observe/diagnostics/timeline.h"
#include "floe/shard/plan/plan.h"

namespace floe::diagnostics {

// Seconds per step. Units inside a unit and waits are not part of its forward and backward.
struct UnitTime {
  std::string unit, class_name;
  double gather_wait_s = 0;  // until its parameters were whole
  double forward_s = 0;
  double backward_s = 0;     // with what is computed again
  double reduce_wait_s = 0;  // until the gradients of its groups were reduced
  double total_s() const { return gather_wait_s + forward_s + backward_s + reduce_wait_s; }
};

struct StepTimes {
  std::int64_t num_steps = 0;
  double step_s = 0;            // mean
  std::vector<UnitTime> units;  // longest first

  double gather_wait_s() const;
  double compute_s() const;
  double reduce_wait_s() const;
};

// Without the first step where there are others: it is slower, because the engine does not know the
// order of units yet and memory is taken for the first time.
std::vector<Span> without_first_step(std::vector<Span> spans);

// Of all steps that the spans contain.
StepTimes step_times(const std::vector<Span>& spans, const shard::ShardPlan& plan);

// A table of the `top_k` longest units, and a sentence where waits take a large part.
std::vector<std::string> time_lines(const StepTimes& times, std::size_t top_k, bool of_device);

// [{"unit", "class", "gather_wait_s", "forward_s", "backward_s", "reduce_wait_s"}], longest first.
nlohmann::ordered_json times_json(const StepTimes& times);

}  // namespace floe::diagnostics
