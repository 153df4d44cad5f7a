// Which strategy is fastest for a run on a machine, within the memory of a GPU.
//
//   const Best best = find_best(subject, {.step = {machine, batch}, .budget = 40 * kGiB});
//
// Note [Search]
// Candidates are all combinations of sharding, residence of what is frozen, what is recomputed or
// moved to host memory, and into how many passes an update's batch is cut; further cuts are looked
// at only while fewer than three candidates fit. Where it fits to recompute all modules but not to
// recompute none, shares in between are candidates too, in eighths of the modules. What a
// combination of the latter two keeps and computes is rehearsed once, what a combination of the
// former two holds and moves is the plan's formula; the sum says which candidates are worth a
// rehearsal of their own. Everything is computed in one order from the configuration alone, so the
// answer is always the same.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/plan/step/step.h"

namespace floe::plan {

struct Choice {
  StrategyConfig strategy;
  int cut = 1;  // passes that the batch of an update is cut into
  StepReport step;
  std::int64_t needed = 0;      // bytes of a GPU, with the largest batch
  std::int64_t host_bytes = 0;  // likewise of the host
  std::string words;            // "hybrid over 8, frozen resident, DecoderLayer recomputed"
};

struct Best {
  std::vector<Choice> choices;  // at most three, the fastest first; empty: nothing fits
  std::int64_t budget = 0;      // bytes of a GPU
  std::int64_t num_candidates = 0, num_rehearsed = 0;
  std::int64_t least_needed = 0;  // of all that were looked at, by estimate
};

struct SearchSettings {
  StepSettings step;
  BatchParts largest;       // that must fit, where it is another than the one that is timed
  std::int64_t budget = 0;  // bytes of a GPU
  bool may_cut = true;      // the batch of an update, into several passes
  bool may_offload = true;  // what is kept for backward
};

// `subject` as configured: what a candidate does not decide (units, dtypes, prefetch) is kept.
Best find_best(const PlanSubject& subject, const SearchSettings& settings);

// "hybrid over 8, frozen resident, recomputed, in 2 passes"
std::string words_of(const StrategyConfig& strategy, int world, int cut = 1);
// "320 ms an update, 6400 tokens/s on each rank, waits 3 ms; needs 21.4 GiB of 131 GiB"
std::string reason_of(const Choice& choice, std::int64_t budget);

std::string to_text(const Best& best);
nlohmann::ordered_json to_json(const Best& best);
// The keys that make a choice, as YAML.
std::string yaml_of(const Choice& choice);

}  // namespace floe::plan
