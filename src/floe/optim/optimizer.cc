#include "floe/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/nn/activations/host_store.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/group/offloadable_slice.h"
#include "floe/shard/group/regroup.h"
#include "floe/shard/plan/plan.h"

namespace floe::optim {
namespace {

using shard::OffloadableSlice;

// By any of its names.
bool is_named(const shard::PlannedParameter& parameter, const std::string& pattern) {
  const auto matches = [&](const std::string& name) { return glob_match(pattern, name); };
  return matches(parameter.name) ||
         std::any_of(parameter.other_names.begin(), parameter.other_names.end(), matches);
}

bool decays(const shard::PlannedParameter& parameter, const DecayRule& rule) {
  return rule.patterns.empty() ||
         std::any_of(rule.patterns.begin(), rule.patterns.end(),
                     [&](const std::string& pattern) { return is_named(parameter, pattern); });
}

// Null: that of the step. Patterns that agree may name the same parameter.
std::optional<double> own_rate(const shard::PlannedParameter& parameter, const RateRule& rule) {
  const std::pair<const std::string, double>* found = nullptr;
  for (const auto& entry : rule.patterns) {
    if (!is_named(parameter, entry.first)) continue;
    require<ConfigError>(!found || found->second == entry.second, "optimizer.lr_patterns: '",
                         parameter.name, "' is named by '", found ? found->first : "", "' (",
                         found ? found->second : 0, ") and by '", entry.first, "' (", entry.second,
                         "); write patterns of which only one names it");
    if (!found) found = &entry;
  }
  return found ? std::optional(found->second) : std::nullopt;
}

std::vector<std::string> trained_names(const shard::Engine& engine, std::size_t set) {
  std::vector<std::string> names;
  for (const auto& parameter : engine.plan().parameters)
    if (parameter.trains_in(set)) {
      names.push_back(parameter.name);
      names.insert(names.end(), parameter.other_names.begin(), parameter.other_names.end());
    }
  return names;
}

std::vector<StateSlice> named(const std::vector<std::string>& names,
                              const std::vector<OffloadableSlice>& slices,
                              const at::Tensor& (OffloadableSlice::*read)() const) {
  std::vector<StateSlice> out;
  for (std::size_t i = 0; i < slices.size(); ++i) out.push_back({names[i], (slices[i].*read)()});
  return out;
}

// In its place, or behind all others.
void put(Settings& settings, const std::string& name, double value) {
  const auto found = std::find_if(settings.begin(), settings.end(),
                                  [&](const auto& setting) { return setting.first == name; });
  if (found != settings.end())
    found->second = value;
  else
    settings.emplace_back(name, value);
}

template <class States>
std::int64_t total(const States& states, std::int64_t (OffloadableSlice::*bytes)() const) {
  std::int64_t sum = 0;
  for (const auto& state : states)
    for (const OffloadableSlice& slice : state.slices) sum += (slice.*bytes)();
  return sum;
}

}  // namespace

void check_patterns(const shard::Engine& engine, const DecayRule& rule, std::size_t set) {
  require_matches("optimizer.decay", "trainable parameter", rule.patterns,
                  trained_names(engine, set));
}

void check_patterns(const shard::Engine& engine, const RateRule& rule, std::size_t set) {
  if (rule.patterns.empty()) return;
  std::vector<std::string> patterns;
  for (const auto& [pattern, rate] : rule.patterns) patterns.push_back(pattern);
  require_matches("optimizer.lr_patterns", "trainable parameter", patterns,
                  trained_names(engine, set));
  for (const auto& parameter : engine.plan().parameters)
    if (parameter.trains_in(set)) own_rate(parameter, rule);
}

std::vector<Range> ranges_of(const shard::FlatGroup& group, const DecayRule& rule,
                             const RateRule& rates) {
  std::vector<Range> ranges;
  for (const shard::Piece& piece : group.pieces()) {
    const auto& parameter = group.parameter(piece.index);
    const double decay = decays(parameter, rule) ? rule.weight_decay : 0;
    const std::optional<double> lr = own_rate(parameter, rates);
    if (!ranges.empty() && ranges.back().weight_decay == decay && ranges.back().lr == lr)
      ranges.back().numel += piece.numel;
    else
      ranges.push_back({piece.slice_offset, piece.numel, decay, lr});
  }
  return ranges;
}

// ---- state and where it is ----

struct Optimizer::State {
  std::vector<OffloadableSlice> slices;  // as `names_`; none: there is no state
  at::Tensor steps;                      // scalar, number of updates
};

Optimizer::Optimizer(shard::Engine& engine, std::size_t set, DecayRule decay,
                     std::vector<std::string> names, bool counts, RateRule rates)
    : engine_(engine),
      set_(set),
      decay_(std::move(decay)),
      rates_(std::move(rates)),
      names_(std::move(names)),
      counts_(counts) {
  require<ConfigError>(set < engine.sets().size(), "an optimizer is for set ", set,
                       ", but the engine has ", engine.sets().size());
  check_patterns(engine, decay_, set);
  check_patterns(engine, rates_, set);
  cut_ranges();
  states_.resize(engine.trainable_groups().size());
  engine.add_owner(this);
  if (engine.active_set() == set_) activate(set_);
  reserve_store();
}

Optimizer::~Optimizer() { engine_.remove_owner(this); }

bool Optimizer::has_state(std::size_t group_index) const {
  return !states_[group_index].slices.empty();
}

const at::Tensor& Optimizer::state(std::size_t group_index, std::size_t which) const {
  return states_[group_index].slices[which].values();
}

bool Optimizer::in_set(std::size_t group_index) const {
  return engine_.trainable_groups()[group_index]->plan().trains_in(set_);
}

void Optimizer::cut_ranges() {
  ranges_.clear();
  for (const shard::FlatGroup* group : engine_.trainable_groups())
    ranges_.push_back(ranges_of(*group, decay_, rates_));
}

Optimizer::State Optimizer::blank(const shard::FlatGroup& group, bool stored) const {
  const at::AutoGradMode grad_off(false);
  const at::TensorOptions options = group.slice().options();
  const auto dtype = group.plan().master_dtype;
  const std::int64_t numel = group.plan().layout.slice_numel();
  State state;
  for (std::size_t i = 0; i < names_.size(); ++i)
    state.slices.emplace_back(stored
                                  ? nn::store_empty(numel, dtype, engine_.world().device()).zero_()
                                  : at::zeros({numel}, options.dtype(dtype)),
                              stored);
  if (counts_) state.steps = at::zeros({}, options.dtype(at::kFloat));
  return state;
}

// Torch's allocator keeps pinned memory that is given back, so what is reserved here is there,
// pinned, when the slices leave.
void Optimizer::reserve_store() {
  const at::Device device = engine_.world().device();
  if (device.is_cpu() || engine_.sets()[set_].rest != shard::Rest::offload) return;
  for (const shard::FlatGroup* group : engine_.trainable_groups()) {
    const shard::PlannedGroup& plan = group->plan();
    if (!plan.trains_in(set_) || plan.offloaded) continue;
    const bool masters_leave = plan.master_dtype != plan.rest_dtype;
    const std::size_t masters = masters_leave && group->stored_bytes() == 0 ? 1 : 0;
    for (std::size_t i = 0; i < names_.size() + masters; ++i)
      reserved_.push_back(nn::store_empty(plan.layout.slice_numel(), plan.master_dtype, device));
  }
}

void Optimizer::deactivate(std::size_t set, std::size_t /*next*/) {
  if (set != set_) return;
  reserved_.clear();
  const shard::Rest how = engine_.sets()[set_].rest;
  if (how == shard::Rest::keep) return;
  for (std::size_t g = 0; g < states_.size(); ++g) {
    if (how == shard::Rest::drop) {
      states_[g] = State();
    } else if (!engine_.trainable_groups()[g]->plan().offloaded) {
      for (auto& slice : states_[g].slices) slice.store();
    }
  }
}

void Optimizer::activate(std::size_t set) {
  if (set != set_) return;
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!in_set(g)) continue;
    if (states_[g].slices.empty()) states_[g] = blank(*groups[g], /*stored=*/false);
    for (auto& slice : states_[g].slices)
      slice.fetch(groups[g]->slice().device(), engine_.move_stream());
  }
}

void Optimizer::prefetch() {
  for (const State& state : states_)
    for (const auto& slice : state.slices) slice.prefetch();
}

void Optimizer::relayout(const shard::Relayout& relayout) {
  std::vector<State> before = std::exchange(states_, {});
  const auto& parts = relayout.parts();
  states_.resize(parts.size());
  cut_ranges();
  for (std::size_t g = 0; g < parts.size(); ++g) {
    if (parts[g].from == shard::Relayout::kNone) continue;
    State& from = before[parts[g].from];
    if (!parts[g].before)
      states_[g] = std::move(from);
    else if (from.steps.defined())
      states_[g].steps = from.steps.clone();
  }
  for (std::size_t i = 0; i < names_.size(); ++i) {
    std::vector<at::Tensor> slices(before.size());
    for (std::size_t b = 0; b < before.size(); ++b)
      if (!before[b].slices.empty()) slices[b] = before[b].slices[i].values();
    const std::vector<at::Tensor> parts_of = relayout.apply(slices);
    for (std::size_t g = 0; g < parts.size(); ++g) {
      if (!parts[g].before || !parts_of[g].defined()) continue;
      const at::Device home = engine_.trainable_groups()[g]->slice().device();
      states_[g].slices.emplace_back(parts_of[g].to(home));
      if (before[parts[g].from].slices[i].stored()) states_[g].slices.back().store();
    }
  }
}

std::vector<StateSlice> Optimizer::state_slices(std::size_t group_index) const {
  return named(names_, states_[group_index].slices, &OffloadableSlice::values);
}

std::vector<StateSlice> Optimizer::held_slices(std::size_t group_index) const {
  return named(names_, states_[group_index].slices, &OffloadableSlice::held);
}

std::vector<StateSlice> Optimizer::open_state(std::size_t group_index) {
  const bool rests = engine_.active_set() != set_;
  const shard::Rest how = engine_.sets()[set_].rest;
  const shard::FlatGroup& group = *engine_.trainable_groups()[group_index];
  const bool wanted = in_set(group_index) && !(rests && how == shard::Rest::drop);
  if (wanted && states_[group_index].slices.empty() && !states_[group_index].steps.defined())
    states_[group_index] =
        blank(group, rests && how == shard::Rest::offload && !group.plan().offloaded);
  return state_slices(group_index);
}

at::Tensor Optimizer::updates(std::size_t group_index) const { return states_[group_index].steps; }

std::int64_t Optimizer::state_bytes() const {
  return total(states_, &OffloadableSlice::device_bytes);
}
std::int64_t Optimizer::stored_bytes() const {
  return total(states_, &OffloadableSlice::stored_bytes);
}
std::int64_t Optimizer::due_bytes() const { return total(states_, &OffloadableSlice::due_bytes); }

std::vector<ParameterGroup> Optimizer::groups_by_settings(const Settings& settings) const {
  // By rate, the step's first; in each what decays and what does not.
  std::vector<std::optional<double>> rates{std::nullopt};
  for (const auto& [pattern, rate] : rates_.patterns)
    if (std::find(rates.begin(), rates.end(), rate) == rates.end()) rates.emplace_back(rate);
  const bool some_decay = !decay_.patterns.empty();

  std::vector<ParameterGroup> groups;
  for (const std::optional<double>& rate : rates)
    for (const bool decaying : {true, false}) {
      if (!decaying && !some_decay) continue;
      ParameterGroup group;
      for (const auto& parameter : engine_.plan().parameters)
        if (parameter.trains_in(set_) && own_rate(parameter, rates_) == rate &&
            decays(parameter, decay_) == decaying)
          group.names.push_back(parameter.name);
      // Without rates there are always two, as trainers that split by decay have them.
      if (group.names.empty() && !rates_.patterns.empty()) continue;
      group.lr = rate ? *rate * schedule_ : lr_;
      group.weight_decay = decaying ? decay_.weight_decay : 0;
      group.settings = settings;
      put(group.settings, "lr", group.lr);
      put(group.settings, "weight_decay", group.weight_decay);
      groups.push_back(std::move(group));
    }
  return groups;
}

void Optimizer::step(double lr, double factor, double schedule) {
  require<ShardError>(engine_.active_set() == set_, "this optimizer updates set ", set_,
                      ", but set ", engine_.active_set(), " trains now; call Engine::activate");
  const at::AutoGradMode grad_off(false);
  lr_ = lr;
  schedule_ = schedule;
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; counts_ && g < groups.size(); ++g)
    if (groups[g]->gradient().defined()) states_[g].steps.add_(1);
  update(factor);
}

std::vector<Optimizer::Part> Optimizer::parts() const {
  std::vector<Part> parts;
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const at::Tensor& gradient = groups[g]->gradient();
    if (!gradient.defined()) continue;
    for (const Range& range : ranges_[g]) {
      const auto view = [&](const at::Tensor& whole) {
        return whole.narrow(0, range.first, range.numel);
      };
      Part& part = parts.emplace_back();
      part.values = view(groups[g]->slice());
      part.gradient = view(gradient);
      for (std::size_t i = 0; i < names_.size(); ++i) part.state.push_back(view(state(g, i)));
      part.updates = states_[g].steps;
      part.lr = range.lr ? *range.lr * schedule_ : lr_;
      part.weight_decay = range.weight_decay;
    }
  }
  return parts;
}

double clip_factor(double norm, double max_norm) { return std::min(1.0, max_norm / (norm + 1e-6)); }

void clip_by_value(shard::Engine& engine, double limit) {
  const at::AutoGradMode grad_off(false);
  for (shard::FlatGroup* group : engine.active_groups())
    if (group->gradient().defined()) {
      at::Tensor gradient = group->gradient();
      gradient.clamp_(-limit, limit);
    }
}

}  // namespace floe::optim
