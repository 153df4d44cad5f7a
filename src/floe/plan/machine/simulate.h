// How long a rehearsed step takes on a machine: an event simulation of what the step issues, with
// streams and links as resources.
//
// Note [Simulation]
// The host issues the trace's steps in their order, and a stream begins one when the host has
// issued it and all before it on the stream are done. Events carry waits between streams as CUDA's
// do. A collective also takes the link that it crosses: collectives of two streams that cross the
// same one follow each other. Kernels of two streams do not slow each other down. Ranks on cores
// are simulated otherwise: Note [Simulation of cores].
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "floe/plan/machine/machine.h"
#include "floe/plan/rehearsal/trace.h"

namespace floe::plan {

inline constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;

// Seconds of a collective over such a group, by the better of ring and tree where there are both.
double collective_seconds(const comm::FakeCollective& collective, const Machine& machine);
// Whether it leaves a node.
bool leaves_node(const comm::FakeCollective& collective, const Machine& machine);
// Seconds of one step of a trace but a collective's; of the stream, without waits.
double work_seconds(const TraceStep& step, const Machine& machine);

struct StepTime {
  double seconds = 0;         // of an update: all of its passes, agreement and update
  double update_seconds = 0;  // agreement and update
  // The compute stream's, by what it does.
  double products = 0, attention = 0, passes = 0, gaps = 0;
  double exposed = 0;  // it waits for a gather, a reduction, a copy or the host
  double intra_seconds = 0, inter_seconds = 0;  // links are busy
  double intra_bytes = 0, inter_bytes = 0;      // that reach a GPU over them
  double flops = 0;
};

// Counts a collective that keeps its link busy for so long.
void add_collective(const comm::FakeCollective& collective, double seconds, const Machine& machine,
                    StepTime& time);

struct UpdateCost {
  std::int64_t numel = 0;         // that this rank updates
  double bytes_per_element = 28;  // read and written
  int world_size = 1;
};

StepTime simulate(const Trace& trace, const UpdateCost& update, const Machine& machine);

}  // namespace floe::plan
