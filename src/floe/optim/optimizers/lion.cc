#include "floe/optim/optimizers/lion.h"

#include <utility>

#include "floe/optim/optimizers/registry.h"

namespace floe::optim {
namespace {

std::vector<std::string> lion_state(const OptimizerConfig& /*config*/ = {}) { return {"exp_avg"}; }

}  // namespace

OptimizerType Lion::type() {
  return {.name = "lion",
          .help = "one moment",
          .keys = {"betas"},
          .state = lion_state,
          .make = [](const OptimizerConfig& config, shard::Engine& engine, std::size_t set,
                     const DecayRule& decay, const RateRule& rates) -> std::unique_ptr<Optimizer> {
            const auto& [beta1, beta2] = config.betas;
            return std::make_unique<Lion>(engine, LionOptions{beta1, beta2, decay, rates}, set);
          }};
}

Lion::Lion(shard::Engine& engine, LionOptions options, std::size_t set)
    : Optimizer(engine, set, options.decay, lion_state(), /*counts=*/false, options.rates),
      options_(std::move(options)) {}

void Lion::update(double factor) {
  const double beta1 = options_.beta1, beta2 = options_.beta2;
  for (const Part& part : parts()) {
    const at::Tensor& average = part.state[0];
    const at::Tensor direction =
        average.mul(beta1).add_(part.gradient, (1 - beta1) * factor).sign_();
    part.values.mul_(1 - part.lr * part.weight_decay).add_(direction, -part.lr);
    average.mul_(beta2).add_(part.gradient, (1 - beta2) * factor);
  }
}

std::vector<ParameterGroup> Lion::parameter_groups() const {
  return groups_by_settings(
      {{"lr", lr_}, {"betas", std::vector{options_.beta1, options_.beta2}}, {"weight_decay", 0.0}});
}

}  // namespace floe::optim
