#include "floe/optim/optimizers/sgd.h"

#include <utility>

#include "floe/optim/optimizers/registry.h"
#include "floe/shard/group/flat_group.h"

namespace floe::optim {
namespace {

std::vector<std::string> sgd_state(double momentum) {
  if (momentum == 0) return {};
  return {"momentum_buffer"};
}

}  // namespace

OptimizerType Sgd::type() {
  return {.name = "sgd",
          .help = "one moment with momentum, else none",
          .keys = {"momentum"},
          .state = [](const OptimizerConfig& config) { return sgd_state(config.momentum); },
          .make = [](const OptimizerConfig& config, shard::Engine& engine, std::size_t set,
                     const DecayRule& decay, const RateRule& rates) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Sgd>(engine, SgdOptions{config.momentum, decay, rates}, set);
          }};
}

Sgd::Sgd(shard::Engine& engine, SgdOptions options, std::size_t set)
    : Optimizer(engine, set, options.decay, sgd_state(options.momentum), /*counts=*/false,
                options.rates),
      options_(std::move(options)) {}

void Sgd::update(double factor) {
  const bool has_momentum = options_.momentum != 0;
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (has_momentum && groups[g]->gradient().defined())
      state(g, 0).mul_(options_.momentum).add_(groups[g]->gradient(), factor);
  for (const Part& part : parts()) {
    const at::Tensor& change = has_momentum ? part.state[0] : part.gradient;
    // The decay's share of the update, beside the gradient's: the gradient itself stays as it is.
    if (part.weight_decay != 0) {
      if (has_momentum)
        change.add_(part.values, part.weight_decay);
      else
        part.values.mul_(1 - part.lr * part.weight_decay);
    }
    part.values.add_(change, has_momentum ? -part.lr : -part.lr * factor);
  }
}

std::vector<ParameterGroup> Sgd::parameter_groups() const {
  return groups_by_settings({{"lr", lr_},
                             {"momentum", options_.momentum},
                             {"dampening", 0.0},
                             {"weight_decay", 0.0},
                             {"nesterov", false},
                             {"maximize", false},
                             {"foreach", {}},
                             {"differentiable", false},
                             {"fused", {}}});
}

}  // namespace floe::optim
