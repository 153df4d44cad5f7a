#include "floe/plan/machine/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/plan/machine/simulate_cores.h"

namespace floe::plan {
namespace {

// Tiles that a product is cut into. Small ones leave processors idle; of large ones the last wave
// does not show, since steps keep to far less than what a product alone reaches.
constexpr std::int64_t kTileRows = 128, kTileColumns = 128;

double share_of_processors(const TraceStep& step, const Machine& machine) {
  const std::int64_t tiles =
      step.batch * ceil_div(step.m, kTileRows) * ceil_div(step.n, kTileColumns);
  return std::min(1.0, static_cast<double>(tiles) / static_cast<double>(machine.processors));
}

double product_seconds(const TraceStep& step, const Machine& machine) {
  const double rate = step.bits == 8    ? machine.fp8_tflops
                      : step.bits == 16 ? machine.bf16_tflops
                                        : machine.fp32_tflops;
  const double arithmetic = step.flops / (rate * kTera * share_of_processors(step, machine));
  return std::max(arithmetic, step.bytes / (machine.memory_gbs * kGiga));
}

struct Spread {
  int nodes = 1;     // that the group is on
  int per_node = 1;  // of its ranks
};

Spread spread_of(const comm::FakeCollective& collective, const Machine& machine) {
  const auto node = static_cast<int>(machine.gpus_per_node);
  Spread spread;
  spread.per_node = std::clamp(node / std::max(collective.stride, 1), 1, collective.size);
  spread.nodes = (collective.size + spread.per_node - 1) / spread.per_node;
  return spread;
}

// Bytes that reach a GPU over the links of its node and over its share of the network. A ring
// carries all but a rank's own part past every rank; what enters a node comes over the network of
// all of its ranks in the group (`inter_gbs` is a GPU's own).
struct Traffic {
  double inside = 0, between = 0;
};

Traffic traffic_of(const comm::FakeCollective& collective, const Machine& machine) {
  const auto [nodes, per_node] = spread_of(collective, machine);
  const double passes = collective.kind == comm::FakeCollective::Kind::all_reduce ? 2 : 1;
  const double bytes = passes * static_cast<double>(collective.bytes);
  Traffic traffic;
  if (per_node > 1) traffic.inside = bytes * (collective.size - 1) / collective.size;
  if (nodes > 1) traffic.between = bytes * (nodes - 1) / nodes / per_node;
  return traffic;
}

}  // namespace

bool leaves_node(const comm::FakeCollective& collective, const Machine& machine) {
  return spread_of(collective, machine).nodes > 1;
}

double collective_seconds(const comm::FakeCollective& collective, const Machine& machine) {
  using Kind = comm::FakeCollective::Kind;
  if (collective.size < 2) return 0;
  const auto [nodes, per_node] = spread_of(collective, machine);
  const double intra = machine.intra_gbs / 2 * machine.intra_share * kGiga;
  const double inter = machine.inter_gbs * machine.inter_share * kGiga;
  const auto size = static_cast<double>(collective.size);
  const auto bytes = static_cast<double>(collective.bytes);
  const Traffic traffic = traffic_of(collective, machine);
  const double passes = collective.kind == Kind::all_reduce ? 2 : 1;
  const double hop = (nodes > 1 ? machine.inter_us : machine.intra_us) * kMicro;
  // One ring through all ranks, as NCCL lays it.
  const double ring_hops =
      ((nodes - 1) * machine.inter_us + (size - nodes) * machine.intra_us) * kMicro;
  const double ring =
      std::max(traffic.inside / intra, traffic.between / inter) + passes * ring_hops;
  if (collective.kind != Kind::all_reduce && collective.kind != Kind::broadcast) return ring;
  // A tree (two of them, so that all links are busy both ways) has few hops and moves everything
  // up and down.
  const double whole =
      std::max(per_node > 1 ? bytes / intra : 0, nodes > 1 ? bytes / (per_node * inter) : 0);
  const double tree = passes * (std::log2(size) * hop + whole);
  return std::min(ring, tree);
}

double work_seconds(const TraceStep& step, const Machine& machine) {
  switch (step.kind) {
    case TraceStep::Kind::product: return product_seconds(step, machine);
    case TraceStep::Kind::attention: {
      const auto keys = static_cast<double>(step.k);
      const double rate = step.flash ? machine.flash_tflops * keys / (keys + machine.flash_half)
                                     : machine.attention_tflops;
      return std::max(step.flops / (rate * kTera), step.bytes / (machine.memory_gbs * kGiga));
    }
    case TraceStep::Kind::pass: return step.bytes / (machine.memory_gbs * kGiga);
    case TraceStep::Kind::host_copy: return step.bytes / (machine.host_gbs * kGiga);
    case TraceStep::Kind::collective:
    case TraceStep::Kind::record:
    case TraceStep::Kind::block: break;
  }
  return 0;
}

void add_collective(const comm::FakeCollective& collective, double seconds, const Machine& machine,
                    StepTime& time) {
  (leaves_node(collective, machine) ? time.inter_seconds : time.intra_seconds) += seconds;
  const auto [inside, between] = traffic_of(collective, machine);
  time.intra_bytes += inside;
  time.inter_bytes += between;
}

namespace {

// One pass; what it takes is added to `time`.
void simulate_pass(const std::vector<TraceStep>& steps, const Machine& machine, StepTime& time) {
  std::map<int, double> streams;  // when each is free
  std::map<int, double> events;   // when each takes place; others are over
  double host = 0, intra_free = 0, inter_free = 0;
  const double gap = machine.kernel_us * kMicro;
  for (const TraceStep& step : steps) {
    double& free = streams[step.stream];
    if (step.kind == TraceStep::Kind::record) {
      events[step.event] = free;
      continue;
    }
    if (step.kind == TraceStep::Kind::block) {
      const auto event = events.find(step.event);
      if (event == events.end()) continue;
      if (step.stream == 0) time.exposed += std::max(0.0, event->second - free);
      free = std::max(free, event->second);
      continue;
    }
    host += machine.issue_us * kMicro;
    if (step.kind == TraceStep::Kind::collective) {
      const bool leaves = leaves_node(step.collective, machine);
      double& link = leaves ? inter_free : intra_free;
      const double seconds = collective_seconds(step.collective, machine);
      free = link = std::max({free, link, host}) + seconds;
      add_collective(step.collective, seconds, machine, time);
      continue;
    }
    const double seconds = work_seconds(step, machine);
    if (step.stream == 0) {
      time.exposed += std::max(0.0, host - free);
      time.gaps += gap;
      (step.kind == TraceStep::Kind::product     ? time.products
       : step.kind == TraceStep::Kind::attention ? time.attention
                                                 : time.passes) += seconds;
      time.flops += step.flops;
    }
    free = std::max(free, host) + seconds + (step.stream == 0 ? gap : 0);
  }
  double end = host;
  for (const auto& [stream, free] : streams) end = std::max(end, free);
  time.exposed += std::max(0.0, end - streams[0]);
  time.seconds += end;
}

}  // namespace

StepTime simulate(const Trace& trace, const UpdateCost& update, const Machine& machine) {
  StepTime time;
  if (machine.of_cores()) {
    for (int pass = 1; pass < trace.passes; ++pass)
      simulate_pass_on_cores(trace.earlier, machine, update.world_size, time);
    simulate_pass_on_cores(trace.steps, machine, update.world_size, time);
    time.update_seconds = update_seconds_on_cores(update, machine);
    time.seconds += time.update_seconds;
    return time;
  }
  for (int pass = 1; pass < trace.passes; ++pass) simulate_pass(trace.earlier, machine, time);
  simulate_pass(trace.steps, machine, time);
  // Norm of the slices' gradients, one small all-reduce, the update.
  const auto numel = static_cast<double>(update.numel);
  const comm::FakeCollective agreement{comm::FakeCollective::Kind::all_reduce, 128,
                                       update.world_size, 1};
  time.update_seconds = numel * 4 / (machine.memory_gbs * kGiga) +
                        numel * update.bytes_per_element / (machine.update_gbs * kGiga) +
                        collective_seconds(agreement, machine) + machine.step_ms * 1e-3;
  time.seconds += time.update_seconds;
  return time;
}

}  // namespace floe::plan
