#include "floe/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/names.h"

namespace floe::optim {
namespace {

std::vector<std::vector<Range>> all_ranges(const shard::Engine& engine, const DecayRule& rule) {
  check_patterns(engine, rule);
  std::vector<std::vector<Range>> ranges;
  for (const shard::FlatGroup* group : engine.trainable_groups())
    ranges.push_back(ranges_of(*group, rule));
  return ranges;
}

bool decays(const shard::PlannedParameter& parameter, const DecayRule& rule) {
  const auto chosen = [&](const std::string& name) { return glob_match_any(rule.patterns, name); };
  return rule.patterns.empty() || chosen(parameter.name) ||
         std::any_of(parameter.other_names.begin(), parameter.other_names.end(), chosen);
}

// One group, or with patterns two: what decays and what does not.
std::vector<ParameterGroup> groups_by_decay(const shard::Engine& engine, const DecayRule& rule,
                                            const nlohmann::ordered_json& settings) {
  std::vector<ParameterGroup> groups(rule.patterns.empty() ? 1 : 2);
  for (const auto& parameter : engine.plan().parameters)
    if (parameter.trainable)
      groups[decays(parameter, rule) ? 0 : 1].names.push_back(parameter.name);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].weight_decay = i == 0 ? rule.weight_decay : 0;
    groups[i].settings = settings;
    groups[i].settings["weight_decay"] = groups[i].weight_decay;
  }
  return groups;
}

}  // namespace

std::int64_t Optimizer::state_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t g = 0; g < engine_.trainable_groups().size(); ++g)
    for (const StateSlice& slice : state_slices(g))
      bytes += static_cast<std::int64_t>(slice.values.nbytes());
  return bytes;
}

void check_patterns(const shard::Engine& engine, const DecayRule& rule) {
  std::vector<std::string> names;
  for (const auto& parameter : engine.plan().parameters)
    if (parameter.trainable) {
      names.push_back(parameter.name);
      names.insert(names.end(), parameter.other_names.begin(), parameter.other_names.end());
    }
  require_matches("optimizer.decay", "trainable parameter", rule.patterns, names);
}

std::vector<Range> ranges_of(const shard::FlatGroup& group, const DecayRule& rule) {
  std::vector<Range> ranges;
  for (const shard::Piece& piece : group.pieces()) {
    const auto& parameter = group.parameter(piece.index);
    const double decay = decays(parameter, rule) ? rule.weight_decay : 0;
    if (!ranges.empty() && ranges.back().weight_decay == decay)
      ranges.back().numel += piece.numel;
    else
      ranges.push_back({piece.shard_offset, piece.numel, decay});
  }
  return ranges;
}

AdamW::AdamW(shard::Engine& engine, AdamWOptions options)
    : Optimizer(engine), options_(std::move(options)), ranges_(all_ranges(engine, options_.decay)) {
  const at::AutoGradMode grad_off(false);
  for (const shard::FlatGroup* group : engine.trainable_groups())
    states_.push_back({at::zeros_like(group->shard()), at::zeros_like(group->shard()),
                       at::zeros({}, group->shard().options().dtype(at::kFloat))});
}

void AdamW::step(double lr) {
  const at::AutoGradMode grad_off(false);
  lr_ = lr;
  // One fused launch per weight decay and dtype, over the ranges of all groups.
  struct Launch {
    std::vector<at::Tensor> values, gradients, averages, squares, steps;
  };
  std::map<std::pair<double, at::ScalarType>, Launch> launches;
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const at::Tensor& gradient = groups[g]->gradient();
    if (!gradient.defined()) continue;
    states_[g].steps.add_(1);
    for (const Range& range : ranges_[g]) {
      Launch& launch = launches[{range.weight_decay, gradient.scalar_type()}];
      const auto part = [&](const at::Tensor& whole) {
        return whole.narrow(0, range.first, range.numel);
      };
      launch.values.push_back(part(groups[g]->shard()));
      launch.gradients.push_back(part(gradient));
      launch.averages.push_back(part(states_[g].exp_avg));
      launch.squares.push_back(part(states_[g].exp_avg_sq));
      launch.steps.push_back(states_[g].steps);
    }
  }
  for (auto& [key, launch] : launches)
    at::_fused_adamw_(launch.values, launch.gradients, launch.averages, launch.squares, {},
                      launch.steps, lr, options_.beta1, options_.beta2, key.first, options_.eps,
                      /*amsgrad=*/false,
                      /*maximize=*/false);
}

std::vector<StateSlice> AdamW::state_slices(std::size_t group_index) const {
  const State& state = states_[group_index];
  return {{"exp_avg", state.exp_avg}, {"exp_avg_sq", state.exp_avg_sq}};
}

std::vector<ParameterGroup> AdamW::parameter_groups() const {
  return groups_by_decay(engine_, options_.decay,
                         {{"lr", lr_},
                          {"betas", {options_.beta1, options_.beta2}},
                          {"eps", options_.eps},
                          {"weight_decay", 0.0},
                          {"amsgrad", false},
                          {"foreach", nullptr},
                          {"maximize", false},
                          {"capturable", false},
                          {"differentiable", false},
                          {"fused", nullptr},
                          {"decoupled_weight_decay", true}});
}

Sgd::Sgd(shard::Engine& engine, SgdOptions options)
    : Optimizer(engine), options_(std::move(options)), ranges_(all_ranges(engine, options_.decay)) {
  if (options_.momentum == 0) return;
  const at::AutoGradMode grad_off(false);
  for (const shard::FlatGroup* group : engine.trainable_groups())
    momentum_.push_back(at::zeros_like(group->shard()));
}

void Sgd::step(double lr) {
  const at::AutoGradMode grad_off(false);
  lr_ = lr;
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const at::Tensor& gradient = groups[g]->gradient();
    if (!gradient.defined()) continue;
    at::Tensor values = groups[g]->shard();
    const bool has_momentum = options_.momentum != 0;
    if (has_momentum) momentum_[g].mul_(options_.momentum).add_(gradient);
    // The decay's share of the update, beside the gradient's: the gradient itself stays as it is.
    for (const Range& range : ranges_[g]) {
      if (range.weight_decay == 0) continue;
      at::Tensor part = values.narrow(0, range.first, range.numel);
      if (has_momentum)
        momentum_[g].narrow(0, range.first, range.numel).add_(part, range.weight_decay);
      else
        part.mul_(1 - lr * range.weight_decay);
    }
    values.add_(has_momentum ? momentum_[g] : gradient, -lr);
  }
}

std::vector<StateSlice> Sgd::state_slices(std::size_t group_index) const {
  if (momentum_.empty()) return {};
  return {{"momentum_buffer", momentum_[group_index]}};
}

std::vector<ParameterGroup> Sgd::parameter_groups() const {
  return groups_by_decay(engine_, options_.decay,
                         {{"lr", lr_},
                          {"momentum", options_.momentum},
                          {"dampening", 0.0},
                          {"weight_decay", 0.0},
                          {"nesterov", false},
                          {"maximize", false},
                          {"foreach", nullptr},
                          {"differentiable", false},
                          {"fused", nullptr}});
}

void clip_by_norm(shard::Engine& engine, double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1) engine.scale_gradients(factor);
}

void clip_by_value(shard::Engine& engine, double limit) {
  const at::AutoGradMode grad_off(false);
  for (shard::FlatGroup* group : engine.trainable_groups())
    if (group->gradient().defined()) {
      at::Tensor gradient = group->gradient();
      gradient.clamp_(-limit, limit);
    }
}

}  // namespace floe::optim
