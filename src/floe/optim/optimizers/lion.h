// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): every element moves
// by the learning rate, in the direction of its gradient and of the one moment that is kept;
// decay apart from the gradient. Half of AdamW's state. Rates are usually three to ten times
// smaller than AdamW's.
#pragma once

#include <string>
#include <vector>

#include "floe/optim/optimizer.h"

namespace floe::optim {

struct OptimizerType;

struct LionOptions {
  double beta1 = 0.9, beta2 = 0.99;  // of the direction, and of the moment
  DecayRule decay;
  RateRule rates;
};

class Lion final : public Optimizer {
 public:
  static OptimizerType type();  // for the registry

  Lion(shard::Engine& engine, LionOptions options, std::size_t set = 0);
  std::string kind() const override { return "Lion"; }
  std::vector<ParameterGroup> parameter_groups() const override;

 protected:
  void update(double factor) override;

 private:
  LionOptions options_;
};

}  // namespace floe::optim
