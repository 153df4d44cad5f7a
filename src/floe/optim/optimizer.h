// Optimizers on slices: each rank updates what it owns, nothing is communicated.
//
// Note [Ranges]
// An update is elementwise, so it runs on whole slices. Where weight decay differs inside a
// group (by pattern), the slice is cut into ranges of elements that share them; neighbouring ranges
// with equal settings are one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/shard/engine.h"

namespace floe::optim {

// Elements [first, first + numel) of a group's slice that share a weight decay.
struct Range {
  std::int64_t first = 0, numel = 0;
  double weight_decay = 0;
};

struct DecayRule {
  double weight_decay = 0;
  // Parameters that decay, by pattern over any of their names; empty: all.
  std::vector<std::string> patterns;
};

// The ranges of a group's slice; padding at its end is in none.
std::vector<Range> ranges_of(const shard::FlatGroup& group, const DecayRule& rule);
// Throws ConfigError for a pattern that matches no trainable parameter of the engine.
void check_patterns(const shard::Engine& engine, const DecayRule& rule);

// One tensor of an optimizer's state, sliced like the group it belongs to.
struct StateSlice {
  std::string name;   // as torch calls it: "exp_avg"
  at::Tensor values;  // [shard_numel]
};

// Parameters that share their settings, as torch's optimizers list them.
struct ParameterGroup {
  std::vector<std::string> names;
  double weight_decay = 0;
  // What torch's optimizer of this kind keeps beside: {"lr": 1e-3, "betas": [0.9, 0.999], ...}. Arrays
  // are tuples in Python.
  nlohmann::ordered_json settings;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates every group that has a gradient, with this learning rate. Groups without one (a unit that
  // was skipped) keep their values and their state.
  virtual void step(double lr) = 0;

  // ---- what a checkpoint holds ----
  // "AdamW", as torch's class is called.
  virtual std::string kind() const = 0;
  // The state of a trainable group's slice, to be read or filled.
  virtual std::vector<StateSlice> state_slices(std::size_t group_index) const = 0;
  // How often the group was updated, a scalar; undefined for optimizers that do not count.
  virtual at::Tensor updates(std::size_t group_index) const { return {}; }
  // In the order of the plan; the decaying ones first where some do not.
  virtual std::vector<ParameterGroup> parameter_groups() const = 0;
  // Bytes of state on this rank.
  std::int64_t state_bytes() const;

 protected:
  explicit Optimizer(shard::Engine& engine) : engine_(engine) {}
  shard::Engine& engine_;
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  DecayRule decay;
};

class AdamW final : public Optimizer {
 public:
  AdamW(shard::Engine& engine, AdamWOptions options);
  void step(double lr) override;
  std::string kind() const override { return "AdamW"; }
  std::vector<StateSlice> state_slices(std::size_t group_index) const override;
  at::Tensor updates(std::size_t group_index) const override { return states_[group_index].steps; }
  std::vector<ParameterGroup> parameter_groups() const override;

  struct State {
    at::Tensor exp_avg, exp_avg_sq;  // [shard_numel]
    at::Tensor steps;                // scalar, number of updates
  };
  const State& state(std::size_t group_index) const { return states_[group_index]; }

 private:
  AdamWOptions options_;
  double lr_ = 0;                           // of the last step
  std::vector<std::vector<Range>> ranges_;  // of each trainable group
  std::vector<State> states_;
};

struct SgdOptions {
  double momentum = 0;
  DecayRule decay;
};

class Sgd final : public Optimizer {
 public:
  Sgd(shard::Engine& engine, SgdOptions options);
  void step(double lr) override;
  std::string kind() const override { return "SGD"; }
  std::vector<StateSlice> state_slices(std::size_t group_index) const override;
  std::vector<ParameterGroup> parameter_groups() const override;

 private:
  SgdOptions options_;
  double lr_ = 0;
  std::vector<std::vector<Range>> ranges_;
  std::vector<at::Tensor> momentum_;  // none without momentum
};

// Clips by the global norm that `agree` gave: as torch's clip_grad_norm_, over all slices of all ranks.
void clip_by_norm(shard::Engine& engine, double norm, double max_norm);
// Clips every gradient element to [-limit, limit].
void clip_by_value(shard::Engine& engine, double limit);

}  // namespace floe::optim
