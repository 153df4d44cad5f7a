#include "floe/diag/memory_watch.h"

#include <algorithm>
#include <utility>

#include "floe/core/error.h"
#include "floe/diag/device_memory.h"
#include "floe/nn/module.h"

namespace floe::diag {
namespace {

std::int64_t at_least_zero(std::int64_t bytes) { return std::max<std::int64_t>(bytes, 0); }

}  // namespace

MemoryWatch::MemoryWatch(shard::Engine& engine, std::vector<optim::Optimizer*> optimizers)
    : engine_(engine),
      optimizers_(std::move(optimizers)),
      device_(engine.world().device()),
      slices_here_(device_.is_cpu() || !engine.options().cpu_offload),
      logits_(engine) {}

void MemoryWatch::on(const shard::Event& event) {
  using Kind = shard::Event::Kind;
  switch (event.kind) {
    case Kind::begin_forward:
    case Kind::begin_backward:
      sample();
      phase_ = event.phase;
      inside_.push_back({std::string(event.unit), event.kind == Kind::begin_backward});
      break;
    case Kind::end_forward:
    case Kind::end_backward: {
      sample();
      phase_ = event.phase;
      const bool backward = event.kind == Kind::end_backward;
      const auto last = std::find_if(inside_.rbegin(), inside_.rend(), [&](const Place& place) {
        return place.backward == backward && place.unit == event.unit;
      });
      if (last != inside_.rend()) inside_.erase(std::next(last).base(), inside_.end());
      break;
    }
    case Kind::reduce: reducing_bytes_ = std::max(reducing_bytes_, event.bytes); break;
    default: break;
  }
}

void MemoryWatch::mark(MemoryPoint point) {
  if (point == MemoryPoint::batch_start) {
    points_.clear();
    kept_.clear();
    inside_.clear();
    parameters_ = optimizer_bytes_ = 0;
    if (slices_here_) {
      const shard::MemoryInUse memory = engine_.memory();
      parameters_ = memory.trainable_shards + memory.resting_shards + memory.frozen_shards;
      for (const optim::Optimizer* optimizer : optimizers_)
        optimizer_bytes_ += optimizer->state_bytes();
    }
    between_steps_ = device_memory(device_).current_bytes;
  }
  if (inside_.empty()) phase_ = shard::Phase::idle;
  sample();
  if (point == MemoryPoint::batch_end) {
    // Nothing but the update has run since the point before.
    peak_.optimizer += std::exchange(peak_.activations, 0);
    peak_.where = "the optimizer's update";
  }
  PointMemory now{point, device_memory(device_).current_bytes, std::exchange(peak_, {})};
  const auto known = std::find_if(points_.begin(), points_.end(),
                                  [&](const PointMemory& p) { return p.point == point; });
  if (known == points_.end()) {
    points_.push_back(std::move(now));
    return;
  }
  known->current_bytes = std::max(known->current_bytes, now.current_bytes);
  if (now.peak.bytes > known->peak.bytes) known->peak = std::move(now.peak);
}

void MemoryWatch::sample() {
  const DeviceMemory memory = device_memory(device_);
  const shard::MemoryInUse engine = engine_.memory();
  const std::int64_t slices = slices_here_ ? engine.gradient_shards : 0;
  const std::int64_t logits = logits_.take_peak_bytes();

  // A unit's forward keeps what is there when it ends and was not when it began.
  const std::int64_t rest =
      memory.current_bytes - engine.pool_held - engine.gradient_pool_held - slices;
  if (phase_ == shard::Phase::forward && !inside_.empty())
    kept_[inside_.back().unit] += rest - rest_;
  rest_ = rest;

  if (memory.peak_bytes > peak_.bytes) {
    MemoryPeak peak;
    peak.bytes = memory.peak_bytes;
    peak.where = where();
    if (!inside_.empty()) peak.unit = inside_.back().unit;
    peak.risen = at_least_zero(memory.peak_bytes - current_);
    std::int64_t left = peak.bytes;
    const auto take = [&left](std::int64_t bytes) {
      const std::int64_t taken = std::clamp<std::int64_t>(bytes, 0, at_least_zero(left));
      left -= taken;
      return taken;
    };
    peak.parameters = take(parameters_);
    peak.optimizer = take(optimizer_bytes_);
    peak.others = take(between_steps_ - parameters_ - optimizer_bytes_);
    peak.gathered = take(engine.pool_peak);
    // A group of one parameter gives autograd's own tensor to its reduction, not one of the pool.
    peak.gradients = take(std::max(gradient_slices_, slices) +
                          std::max(engine.gradient_pool_peak, reducing_bytes_));
    peak.logits = take(logits);
    peak.activations = left;
    peak_ = std::move(peak);
  }
  current_ = memory.current_bytes;
  gradient_slices_ = slices;
  reducing_bytes_ = 0;
  reset_peak(device_);
  engine_.reset_memory_peaks();
}

std::string MemoryWatch::where() const {
  if (!inside_.empty())
    return (inside_.back().backward ? "the backward of " : "the forward of ") + inside_.back().unit;
  if (points_.empty()) return "the time before the batch";
  switch (points_.back().point) {
    case MemoryPoint::batch_start: return "the forward, outside of units (the loss)";
    case MemoryPoint::after_forward: return "the backward, outside of units (the loss)";
    default: return "the time between passes";
  }
}

const PointMemory& MemoryWatch::largest() const {
  require(!points_.empty(), "no point of a batch was reached");
  return *std::max_element(
      points_.begin(), points_.end(),
      [](const PointMemory& a, const PointMemory& b) { return a.peak.bytes < b.peak.bytes; });
}

std::string MemoryWatch::advice() const { return peak_advice(largest().peak, context()); }

PeakContext MemoryWatch::context() const {
  PeakContext context;
  context.logits_rows = logits_.most_rows();
  context.vocabulary = logits_.vocabulary().size;
  // By class, because a model has many equal layers: what their forwards kept, and what one of them
  // took for a moment at the peak. The root has the rest of the model and cannot be checkpointed.
  const MemoryPeak& peak = largest().peak;
  const shard::ShardPlan& plan = engine_.plan();
  std::map<std::string, std::int64_t> held;
  for (const shard::PlannedUnit& unit : plan.units) {
    const auto kept = kept_.find(unit.label());
    const std::int64_t risen = unit.label() == peak.unit ? peak.risen : 0;
    held[unit.name.empty() ? "" : unit.class_name] +=
        (kept == kept_.end() ? 0 : kept->second) + risen;
  }
  const auto most = std::max_element(
      held.begin(), held.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  context.main_holder = most->first;
  context.holder_is_checkpointed =
      std::any_of(plan.checkpointed.begin(), plan.checkpointed.end(), [&](const auto& checkpoint) {
        return nn::class_name(*checkpoint.module) == context.main_holder;
      });
  return context;
}

}  // namespace floe::diag
