#include "floe/optim/optimizers/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "floe/optim/optimizers/registry.h"

namespace floe::optim {
namespace {

std::vector<std::string> adamw_state(const OptimizerConfig& /*config*/ = {}) {
  return {"exp_avg", "exp_avg_sq"};
}

}  // namespace

OptimizerType AdamW::type() {
  return {.name = "adamw",
          .help = "two moments",
          .keys = {"betas", "eps"},
          .state = adamw_state,
          .make = [](const OptimizerConfig& config, shard::Engine& engine, std::size_t set,
                     const DecayRule& decay, const RateRule& rates) -> std::unique_ptr<Optimizer> {
            const auto& [beta1, beta2] = config.betas;
            return std::make_unique<AdamW>(
                engine, AdamWOptions{beta1, beta2, config.eps, decay, rates}, set);
          }};
}

AdamW::AdamW(shard::Engine& engine, AdamWOptions options, std::size_t set)
    : Optimizer(engine, set, options.decay, adamw_state(), /*counts=*/true, options.rates),
      options_(std::move(options)) {}

void AdamW::update(double factor) {
  // One fused launch per learning rate, weight decay and dtype, over the ranges of all groups.
  struct Launch {
    std::vector<at::Tensor> values, gradients, averages, squares, steps;
  };
  std::map<std::tuple<double, double, at::ScalarType>, Launch> launches;
  for (const Part& part : parts()) {
    Launch& launch = launches[{part.lr, part.weight_decay, part.gradient.scalar_type()}];
    launch.values.push_back(part.values);
    launch.gradients.push_back(part.gradient);
    launch.averages.push_back(part.state[0]);
    launch.squares.push_back(part.state[1]);
    launch.steps.push_back(part.updates);
  }
  for (auto& [key, launch] : launches) {
    const auto& [lr, weight_decay, dtype] = key;
    // The kernel divides what it reads.
    std::optional<at::Tensor> divisor;
    if (factor != 1)
      divisor = at::full({}, 1 / factor, launch.gradients[0].options().dtype(at::kFloat));
    at::_fused_adamw_(launch.values, launch.gradients, launch.averages, launch.squares, {},
                      launch.steps, lr, options_.beta1, options_.beta2, weight_decay, options_.eps,
                      /*amsgrad=*/false,
                      /*maximize=*/false, divisor);
  }
}

std::vector<ParameterGroup> AdamW::parameter_groups() const {
  return groups_by_settings({{"lr", lr_},
                             {"betas", std::vector{options_.beta1, options_.beta2}},
                             {"eps", options_.eps},
                             {"weight_decay", 0.0},
                             {"amsgrad", false},
                             {"foreach", {}},
                             {"maximize", false},
                             {"capturable", false},
                             {"differentiable", false},
                             {"fused", {}},
                             {"decoupled_weight_decay", true}});
}

}  // namespace floe::optim
