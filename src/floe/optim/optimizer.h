// Optimizers on slices: each rank updates what it owns, nothing is communicated.
//
// Note [Ranges]
// An update is elementwise, so it runs on whole slices. Where weight decay or learning rate differ
// inside a group (by pattern), the slice is cut into ranges of elements that share them;
// neighbouring ranges with equal settings are one.
//
// Note [One optimizer per set]
// State belongs to (set, parameter), so every set of the engine has an optimizer of its own;
// exactly one is at work. An optimizer follows the engine: when its set rests, the state
// stays, leaves the device or is forgotten, as shard::Rest says. A set that has not trained
// yet has no state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "floe/shard/engine.h"
#include "floe/shard/slice_owner.h"

namespace floe::optim {

// Elements [first, first + numel) of a group's slice that share a weight decay and a learning rate.
struct Range {
  std::int64_t first = 0, numel = 0;
  double weight_decay = 0;
  std::optional<double> lr;  // of a pattern, without the schedule; null: that of the step
};

struct DecayRule {
  double weight_decay = 0;
  // Parameters that decay, by pattern over any of their names; empty: all.
  std::vector<std::string> patterns;
};

// Learning rates of some parameters, by pattern over any of their names.
struct RateRule {
  std::map<std::string, double> patterns;
};

// The ranges of a group's slice; padding at its end is in none.
std::vector<Range> ranges_of(const shard::FlatGroup& group, const DecayRule& rule,
                             const RateRule& rates = {});
// Throws ConfigError for a pattern that matches no parameter that the set trains.
void check_patterns(const shard::Engine& engine, const DecayRule& rule, std::size_t set = 0);
// The same for rates, and for a parameter that two patterns give different ones.
void check_patterns(const shard::Engine& engine, const RateRule& rule, std::size_t set = 0);

// One tensor of an optimizer's state, sliced like the group it belongs to.
struct StateSlice {
  std::string name;   // as torch calls it: "exp_avg"
  at::Tensor values;  // [slice_numel]
};

// A setting as torch's optimizers keep it: None, True or False, a number, a tuple of numbers.
using Setting = std::variant<std::monostate, bool, double, std::vector<double>>;
// By name, in torch's order: {"lr": 1e-3, "betas": (0.9, 0.999), ...}.
using Settings = std::vector<std::pair<std::string, Setting>>;

// Parameters that share their settings, as torch's optimizers list them.
struct ParameterGroup {
  std::vector<std::string> names;
  double lr = 0, weight_decay = 0;
  Settings settings;
};

class Optimizer : public shard::SliceOwner {
 public:
  ~Optimizer() override;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  const shard::Engine& engine() const { return engine_; }
  // The set of the engine that it updates.
  std::size_t set() const { return set_; }

  // Updates every group of its set that has a gradient, with this learning rate and with gradients
  // multiplied by `factor` on the way (clip_factor, one over a loss scale): what they hold
  // afterwards is not said. What a RateRule names has its own rate times `schedule`, whatever `lr`
  // is. Groups without a gradient (a unit that was skipped) keep their values and their state.
  // Throws ShardError while its set rests.
  void step(double lr, double factor = 1, double schedule = 1);
  // What checkpoints say of the learning rate until the first step.
  void set_first_lr(double lr) { lr_ = lr; }

  // ---- what a checkpoint holds. Groups are counted as in Engine::trainable_groups. ----
  // "AdamW", as torch's class is called.
  virtual std::string kind() const = 0;
  // What it keeps per element, as torch calls it: "exp_avg".
  const std::vector<std::string>& state_names() const { return names_; }
  // The state of a group's slice, to be read or filled, wherever it is now; empty when
  // there is none.
  std::vector<StateSlice> state_slices(std::size_t group_index) const;
  // The same to be read only (see OffloadableSlice::held).
  std::vector<StateSlice> held_slices(std::size_t group_index) const;
  bool has_state(std::size_t group_index) const;
  // The same for a checkpoint that has state: makes it where there is none. Still empty for groups
  // of other sets, and for a resting set that drops its state.
  std::vector<StateSlice> open_state(std::size_t group_index);
  // How often the group was updated, a scalar; undefined for optimizers that do not count, and
  // where there is no state.
  at::Tensor updates(std::size_t group_index) const;
  // In the order of the plan; the decaying ones first where some do not, and behind all others
  // those with rates of their own, again the decaying ones first.
  virtual std::vector<ParameterGroup> parameter_groups() const = 0;
  // How many values it keeps per element.
  int values_per_element() const { return static_cast<int>(names_.size()); }
  // Bytes of state on this rank: on the device, and in the host store.
  std::int64_t state_bytes() const;
  std::int64_t stored_bytes() const;
  // Of what is stored: on its way back behind the next backward.
  std::int64_t due_bytes() const;

  // ---- following the engine ----
  void deactivate(std::size_t set, std::size_t next) override;
  void activate(std::size_t set) override;
  void prefetch() override;
  void relayout(const shard::Relayout& relayout) override;

 protected:
  // `names`: what it keeps per element; `counts`: it counts its updates.
  Optimizer(shard::Engine& engine, std::size_t set, DecayRule decay, std::vector<std::string> names,
            bool counts, RateRule rates = {});

  // A stretch of a group's slice that shares its settings, with views of all that an update
  // touches.
  struct Part {
    at::Tensor values, gradient;    // [numel]
    std::vector<at::Tensor> state;  // as `names`, each [numel]
    at::Tensor updates;             // of its group with this one, a scalar; undefined: not counted
    double lr = 0, weight_decay = 0;
  };
  // Of all groups that have a gradient in the step under way.
  std::vector<Part> parts() const;

  // The update itself, elementwise: gradients times `factor` are what moves the values.
  virtual void update(double factor) = 0;
  // One of `names` of a group that trains now.
  const at::Tensor& state(std::size_t group_index, std::size_t which) const;
  bool in_set(std::size_t group_index) const;
  // One group, or with patterns of what decays two; and up to two for every rate of its own.
  std::vector<ParameterGroup> groups_by_settings(const Settings& settings) const;

  shard::Engine& engine_;
  double lr_ = 0;        // of the last step, or of the first
  double schedule_ = 1;  // on the rates of patterns, of the last step

 private:
  struct State;  // of a group

  // Zeros, on the device or in the store.
  State blank(const shard::FlatGroup& group, bool stored) const;
  void cut_ranges();
  // Takes the store's memory for state and masters of its set ahead of the first switch: pinning it
  // costs far more than the copies.
  void reserve_store();

  const std::size_t set_;
  const DecayRule decay_;
  const RateRule rates_;
  const std::vector<std::string> names_;
  const bool counts_;
  std::vector<std::vector<Range>> ranges_;  // of each trainable group
  std::vector<State> states_;
  std::vector<at::Tensor> reserved_;  // until the set rests for the first time
};

// What brings gradients of the global norm that `agree` gave below max_norm, as torch's
// clip_grad_norm_ over all slices of all ranks: the factor for Optimizer::step.
double clip_factor(double norm, double max_norm);
// Clips every gradient element to [-limit, limit].
void clip_by_value(shard::Engine& engine, double limit);

}  // namespace floe::optim
