#include "floe/plan/machine/simulate_cores.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>

namespace floe::plan {
namespace {

// What is smaller than this torch does on the calling thread (at::internal::GRAIN_SIZE elements,
// read and written in fp32).
constexpr double kSerialBytes = 2.0 * 32768 * 4;

// Of all cores' rate that `busy` of them reach together.
double share_of_all(double busy, double cores, double one) {
  if (cores <= 1) return 1;
  return one + (1 - one) * (busy - 1) / (cores - 1);
}

bool is_serial(const TraceStep& step) {
  return step.kind != TraceStep::Kind::product && step.kind != TraceStep::Kind::attention &&
         step.bytes < kSerialBytes;
}

// What is under way at a moment: the rank's own work, and collectives.
class Cores {
 public:
  Cores(const Machine& machine, const CoresOfRank& rank) : machine_(machine), rank_(rank) {}

  double now() const { return now_; }

  void issue(int stream, int event, double seconds) {
    under_way_[stream].push_back({seconds, event});
  }
  // The event takes place when all before it on the stream is done.
  void mark(int stream, int event) {
    auto& queue = under_way_[stream];
    if (queue.empty()) return;  // it has
    queue.back().event = event;
    pending_.insert(event);
  }

  // The rank's own thread works for so long, with so many threads, if it has them for itself.
  void compute(double seconds, int threads) {
    while (seconds > 0) {
      const double speed = speed_with(threads);
      const double passes = std::min(seconds / speed, next_end(speed));
      seconds -= passes * speed;
      advance(passes, speed);
      if (seconds < 1e-15) break;
    }
  }
  // It waits; how long.
  double wait(int event) {
    const double begin = now_;
    while (pending_.contains(event)) step_to_next_end();
    return now_ - begin;
  }
  double wait_for_all() {
    const double begin = now_;
    while (!idle()) step_to_next_end();
    return now_ - begin;
  }

 private:
  struct Task {
    double left = 0;
    int event = -1;
  };

  bool idle() const {
    return std::all_of(under_way_.begin(), under_way_.end(),
                       [](const auto& queue) { return queue.second.empty(); });
  }
  double speed_with(int threads) const {
    double wanted = threads;
    for (const auto& [stream, queue] : under_way_)
      if (!queue.empty()) wanted += machine_.collective_cores;
    return std::min(1.0, rank_.cores / (wanted * rank_.ranks));
  }
  double next_end(double speed) const {
    double end = std::numeric_limits<double>::infinity();
    for (const auto& [stream, queue] : under_way_)
      if (!queue.empty()) end = std::min(end, queue.front().left / speed);
    return end;
  }
  void step_to_next_end() {
    const double speed = speed_with(0);
    advance(next_end(speed), speed);
  }
  void advance(double seconds, double speed) {
    now_ += seconds;
    for (auto& [stream, queue] : under_way_) {
      if (queue.empty()) continue;
      queue.front().left -= seconds * speed;
      if (queue.front().left > 1e-12) continue;
      pending_.erase(queue.front().event);
      queue.pop_front();
    }
  }

  const Machine& machine_;
  const CoresOfRank& rank_;
  double now_ = 0;
  std::map<int, std::deque<Task>> under_way_;  // by stream
  std::set<int> pending_;                      // events
};

}  // namespace

CoresOfRank::CoresOfRank(const Machine& machine, int world_size)
    : ranks(std::min(world_size, static_cast<int>(machine.gpus_per_node))),
      threads(std::max(1, static_cast<int>(machine.cores) / ranks)),
      cores(static_cast<double>(machine.cores)) {
  busy = std::min(cores, static_cast<double>(ranks * threads));
  rate = share_of_all(busy, cores, machine.core_share) / busy;
  memory = share_of_all(busy, cores, machine.core_memory_share) / busy;
}

double work_seconds_on_cores(const TraceStep& step, const Machine& machine,
                             const CoresOfRank& rank) {
  const double threads = is_serial(step) ? 1 : rank.threads;
  const double memory = machine.memory_gbs * kGiga * rank.memory * threads;
  switch (step.kind) {
    case TraceStep::Kind::product: {
      const double tflops = step.bits == 8    ? machine.fp8_tflops
                            : step.bits == 16 ? machine.bf16_tflops
                                              : machine.fp32_tflops;
      const auto side =
          static_cast<double>(std::max<std::int64_t>(1, std::min({step.m, step.n, step.k})));
      const double arithmetic =
          step.flops * (1 + machine.product_half / side) / (tflops * kTera * rank.rate * threads);
      return std::max(arithmetic, step.bytes / memory);
    }
    case TraceStep::Kind::attention: {
      const auto keys = static_cast<double>(step.k);
      const double tflops = step.flash ? machine.flash_tflops * keys / (keys + machine.flash_half)
                                       : machine.attention_tflops;
      return std::max(step.flops / (tflops * kTera * rank.rate * threads), step.bytes / memory);
    }
    case TraceStep::Kind::pass: return step.bytes / memory;
    case TraceStep::Kind::host_copy:
      return step.bytes / (machine.host_gbs * kGiga * rank.memory * threads);
    case TraceStep::Kind::collective:
    case TraceStep::Kind::record:
    case TraceStep::Kind::block: break;
  }
  return 0;
}

double collective_seconds_on_cores(const comm::FakeCollective& collective, const Machine& machine) {
  using Kind = comm::FakeCollective::Kind;
  const double moves = collective_seconds(collective, machine);
  if (collective.size < 2 || collective.kind == Kind::all_gather ||
      collective.kind == Kind::broadcast)
    return moves;
  return moves + static_cast<double>(collective.bytes) / (machine.reduce_gbs * kGiga);
}

void simulate_pass_on_cores(const std::vector<TraceStep>& steps, const Machine& machine,
                            int world_size, StepTime& time) {
  const CoresOfRank rank(machine, world_size);
  Cores cores(machine, rank);
  for (const TraceStep& step : steps) {
    switch (step.kind) {
      case TraceStep::Kind::record:
        if (step.stream != 0) cores.mark(step.stream, step.event);
        continue;
      case TraceStep::Kind::block:
        if (step.stream == 0) time.exposed += cores.wait(step.event);
        continue;
      case TraceStep::Kind::collective: {
        const double seconds = collective_seconds_on_cores(step.collective, machine);
        cores.issue(step.stream, -1, seconds);
        add_collective(step.collective, seconds, machine, time);
        continue;
      }
      default: break;
    }
    const double seconds = work_seconds_on_cores(step, machine, rank);
    const double gap = machine.kernel_us * kMicro;
    const double begin = cores.now();
    cores.compute(gap, 1);
    time.gaps += cores.now() - begin;
    const double after_gap = cores.now();
    cores.compute(seconds, is_serial(step) ? 1 : rank.threads);
    (step.kind == TraceStep::Kind::product     ? time.products
     : step.kind == TraceStep::Kind::attention ? time.attention
                                               : time.passes) += cores.now() - after_gap;
    time.flops += step.flops;
  }
  time.exposed += cores.wait_for_all();
  time.seconds += cores.now();
}

double update_seconds_on_cores(const UpdateCost& update, const Machine& machine) {
  const CoresOfRank rank(machine, update.world_size);
  const auto numel = static_cast<double>(update.numel);
  const double share = rank.memory * rank.threads;
  // Norm, update, one small all-reduce.
  const double passes = numel * 4 / (machine.memory_gbs * kGiga * share) +
                        numel * update.bytes_per_element / (machine.update_gbs * kGiga * share);
  const comm::FakeCollective agreement{comm::FakeCollective::Kind::all_reduce, 128,
                                       update.world_size, 1};
  const double crowd = std::max(1.0, rank.ranks * rank.threads / rank.cores);
  return (passes + machine.step_ms * 1e-3) * crowd +
         collective_seconds_on_cores(agreement, machine);
}

}  // namespace floe::plan
