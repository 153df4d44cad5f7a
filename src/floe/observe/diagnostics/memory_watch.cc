#include "floe/observe/diagnostics/memory_watch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/table.h"
#include "floe/nn/module.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"

namespace floe::diagnostics {
namespace {

std::string activations_advice(const PeakContext& context) {
  if (context.main_holder.empty())
    return "activations, most of them outside of units: use shorter sequences or smaller batches";
  const std::string most = str("activations, most of them in ", context.main_holder);
  if (context.checkpointed == PeakContext::Checkpointed::some)
    return str(most,
               ", of which some are checkpointed: checkpoint more of them "
               "(strategy.activation_checkpointing, strategy.activations.share), or use shorter "
               "sequences or smaller batches");
  if (context.checkpointed == PeakContext::Checkpointed::all)
    return str(most,
               ", which is checkpointed already: use shorter sequences, or smaller batches with "
               "train.gradient_accumulation");
  return str(most, ": set strategy.activation_checkpointing: [", context.main_holder,
             "], or use shorter sequences or smaller batches");
}

std::string advice_for(std::string_view part, const PeakContext& context) {
  if (part == "parameters")
    return "slices of parameters: use more ranks, strategy.cpu_offload, or a smaller "
           "strategy.frozen.dtype";
  if (part == "optimizer")
    return "the optimizer's state and update: use more ranks or strategy.cpu_offload";
  if (part == "gathered")
    return "the pool of gathered parameters: name smaller units in strategy.units, lower "
           "strategy.prefetch, or use full_shard";
  if (part == "gradients")
    return "gradients: name smaller units in strategy.units, or use more ranks";
  if (part == "logits")
    return str("logits and their gradients, up to [", context.logits_rows, ", ", context.vocabulary,
               "] at a time: use fewer labelled tokens per batch");
  if (part == "activations") return activations_advice(context);
  return "tensors that are there between steps and are neither slices nor optimizer state: "
         "averaged weights, buffers, the batch";
}

// Callbacks are plain functions: they find the watch here.
LogitsWatch* current = nullptr;

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction&) { return nullptr; }

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
  if (current) current->see(function);
}

std::int64_t at_least_zero(std::int64_t bytes) { return std::max<std::int64_t>(bytes, 0); }

}  // namespace

const char* name_of(MemoryPoint point) {
  switch (point) {
    case MemoryPoint::batch_start: return "batch_start";
    case MemoryPoint::after_forward: return "after_forward";
    case MemoryPoint::after_backward: return "after_backward";
    case MemoryPoint::before_optimizer_step: return "before_optimizer_step";
    case MemoryPoint::batch_end: return "batch_end";
  }
  return "?";
}

std::vector<MemoryPeak::Part> MemoryPeak::parts() const {
  std::vector<Part> parts{{"parameters", parameters},  {"optimizer", optimizer}, {"others", others},
                          {"gathered", gathered},      {"gradients", gradients}, {"logits", logits},
                          {"activations", activations}};
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.bytes > b.bytes; });
  return parts;
}

std::string peak_hint(const MemoryPeak& peak) {
  constexpr std::size_t kMost = 3;
  constexpr std::int64_t kWorthSaying = 20;  // the twentieth part
  std::vector<std::string> words;
  for (const MemoryPeak::Part& part : peak.parts())
    if (words.size() < kMost && part.bytes > 0 && kWorthSaying * part.bytes >= peak.bytes)
      words.push_back(str(part.name, " ", percent(part.bytes, peak.bytes)));
  return join(words);
}

std::string peak_advice(const MemoryPeak& peak, const PeakContext& context) {
  const MemoryPeak::Part largest = peak.parts().front();
  return str("the peak of memory is ", format_bytes(peak.bytes), ", in ", peak.where, "; ",
             percent(largest.bytes, peak.bytes), " of it are ", advice_for(largest.name, context));
}

Vocabulary find_vocabulary(const torch::nn::Module& model) {
  Vocabulary found;
  const auto look = [&found](const torch::nn::Module& module) {
    if (nn::class_name(module).find("Embedding") == std::string::npos) return;
    for (const at::Tensor& table : module.parameters(/*recurse=*/false))
      if (table.dim() == 2 && table.size(0) > found.size) found = {table.size(0), table.size(1)};
  };
  look(model);
  for (const auto& module : model.modules(/*include_self=*/false)) look(*module);
  return found;
}

LogitsWatch::LogitsWatch(const shard::Engine& engine)
    : vocabulary_(find_vocabulary(engine.model())) {
  for (const auto& group : engine.groups()) {
    parameters_.insert(group->storage());
    parameters_.insert(group->slice().storage().unsafeGetStorageImpl());
  }
  if (vocabulary_.size == 0) return;
  require(current == nullptr, "there is a LogitsWatch already");
  current = this;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_begin, &on_end)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

LogitsWatch::~LogitsWatch() {
  if (current != this) return;
  at::removeCallback(callback_);
  current = nullptr;
}

void LogitsWatch::see(const at::RecordFunction& function) {
  for (const c10::IValue& output : function.outputs()) {
    if (output.isTensor()) {
      see(output.toTensor());
    } else if (output.isTensorList()) {
      for (const at::Tensor& tensor : output.toTensorVector()) see(tensor);
    }
  }
}

void LogitsWatch::see(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.dim() < 2 ||
      tensor.size(-1) != vocabulary_.size)
    return;
  if (tensor.dim() == 2 && tensor.size(0) == vocabulary_.width) return;
  const c10::Storage& storage = tensor.storage();
  if (parameters_.contains(storage.unsafeGetStorageImpl())) return;
  const std::scoped_lock lock(mutex_);
  const std::int64_t live = live_bytes();
  const bool known = std::any_of(live_.begin(), live_.end(), [&](const auto& weak) {
    return weak._unsafe_get_target() == storage.unsafeGetStorageImpl();
  });
  if (!known) live_.push_back(storage.getWeakStorageImpl());
  peak_bytes_ =
      std::max(peak_bytes_, live + (known ? 0 : static_cast<std::int64_t>(storage.nbytes())));
  most_rows_ = std::max(most_rows_, tensor.numel() / vocabulary_.size);
}

std::int64_t LogitsWatch::live_bytes() {
  std::erase_if(live_, [](const auto& weak) { return weak.expired(); });
  std::int64_t bytes = 0;
  for (const auto& weak : live_)
    if (const auto storage = weak.lock()) bytes += static_cast<std::int64_t>(storage->nbytes());
  return bytes;
}

std::int64_t LogitsWatch::take_peak_bytes() {
  const std::scoped_lock lock(mutex_);
  const std::int64_t live = live_bytes();
  return std::exchange(peak_bytes_, live);
}

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
      parameters_ = memory.trainable_slices + memory.resting_slices + memory.frozen_slices;
      for (const optim::Optimizer* optimizer : optimizers_)
        optimizer_bytes_ += optimizer->state_bytes();
    }
    between_steps_ = device_memory(device_).current_bytes;
  }
  if (inside_.empty()) phase_ = shard::PassPhase::idle;
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
  const std::int64_t slices = slices_here_ ? engine.gradient_slices : 0;
  const std::int64_t logits = logits_.take_peak_bytes();

  // A unit's forward keeps what is there when it ends and was not when it began.
  const std::int64_t rest =
      memory.current_bytes - engine.pool_held - engine.gradient_pool_held - slices;
  if (phase_ == shard::PassPhase::forward && !inside_.empty())
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
  const auto holders_among = [&](const auto& places) {
    return std::count_if(places.begin(), places.end(), [&](const auto& place) {
      return nn::class_name(*place.module) == context.main_holder;
    });
  };
  if (const auto checkpointed = holders_among(plan.checkpointed); checkpointed > 0)
    context.checkpointed = checkpointed < holders_among(plan.units)
                               ? PeakContext::Checkpointed::some
                               : PeakContext::Checkpointed::all;
  return context;
}

}  // namespace floe::diagnostics
