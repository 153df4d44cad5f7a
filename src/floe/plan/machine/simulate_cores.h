// How long a rehearsed step takes where ranks share the cores of their machine.
//
// Note [Simulation of cores]
// All ranks of a node do the same at the same time, so one of them is followed. Its own thread
// (with as many more as it has, where a step of the trace is large enough) works through the trace;
// beside it Gloo's threads carry collectives, those of one stream one after the other. Where all of
// that on all ranks of the node wants more cores than there are, everything is slower in
// proportion, as a fair scheduler has it; so a collective beside the computation costs time even
// when nobody waits for it.
#pragma once

#include <vector>

#include "floe/plan/machine/machine.h"
#include "floe/plan/machine/simulate.h"
#include "floe/plan/rehearsal/trace.h"

namespace floe::plan {

// What one of `world_size` ranks has of such a machine.
struct CoresOfRank {
  CoresOfRank(const Machine& machine, int world_size);

  int ranks = 1;      // of the node
  int threads = 1;    // of a rank, as floe launch gives them
  double busy = 1;    // cores, while all ranks compute
  double rate = 1;    // of the machine's products that one busy core reaches
  double memory = 1;  // likewise of memory
  double cores = 1;   // of the node
};

// Seconds of one step of a trace but a collective's, if nothing else wants the rank's cores.
double work_seconds_on_cores(const TraceStep& step, const Machine& machine,
                             const CoresOfRank& rank);
// Likewise of a collective, which Gloo's threads carry.
double collective_seconds_on_cores(const comm::FakeCollective& collective, const Machine& machine);

// One pass; what it takes is added to `time`.
void simulate_pass_on_cores(const std::vector<TraceStep>& steps, const Machine& machine,
                            int world_size, StepTime& time);
// Agreement and update.
double update_seconds_on_cores(const UpdateCost& update, const Machine& machine);

}  // namespace floe::plan
