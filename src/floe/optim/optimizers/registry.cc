#include "floe/optim/optimizers/registry.h"

#include "floe/optim/optimizers/adamw.h"
#include "floe/optim/optimizers/lion.h"
#include "floe/optim/optimizers/sgd.h"

namespace floe::optim {

const std::vector<OptimizerType>& optimizer_types() {
  static const std::vector<OptimizerType> types{
      AdamW::type(),
      Sgd::type(),
      Lion::type(),
  };
  return types;
}

const OptimizerType& optimizer_type(OptimizerKind kind) {
  return optimizer_types().at(static_cast<std::size_t>(kind));
}

int num_moments(const OptimizerConfig& config) {
  return static_cast<int>(optimizer_type(config.type).state(config).size());
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, shard::Engine& engine,
                                          std::size_t set, const DecayRule& decay,
                                          const RateRule& rates) {
  return optimizer_type(config.type).make(config, engine, set, decay, rates);
}

}  // namespace floe::optim
