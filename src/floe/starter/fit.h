// Whether a run fits into memory. What a rank holds of the model is floe plan's own number; what
// the activations of a batch take comes on top, by an estimate.
#pragma once

#include <cstdint>

#include "floe/plan/report.h"

namespace floe::starter {

// A batch of all sources on one rank.
struct BatchLoad {
  double tokens = 0, images = 0;
};

// What a step of the planned run holds beside the plan's bytes, at most.
//
// Note [Activations]
// A matrix product keeps its input for backward, and what stands between two of them (norms,
// attention, nonlinearities) keeps about as much again; so the inputs and outputs of all linear
// layers, once per row that goes through them, are a good measure. A unit that recomputes keeps its
// input alone, and one at a time is there whole. The image tower has no backward: of its blocks one
// at a time counts. Logits exist in chunks (Note [Loss without logits]).
std::int64_t activation_bytes(const plan::PlanReport& report, const BatchLoad& load);

// Of the plan, on the device that computes: what lies in host memory does not count.
std::int64_t device_bytes(const plan::PlanReport& report);

// What an asynchronous save copies to host memory: all that changes, each byte by one of the ranks
// that hold it.
std::int64_t saved_bytes(const plan::PlanReport& report);

}  // namespace floe::starter
