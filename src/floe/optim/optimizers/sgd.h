// Stochastic gradient descent, as torch.optim.SGD: decay is a part of the gradient, and with
// momentum the first buffer is the gradient itself.
#pragma once

#include <string>
#include <vector>

#include "floe/optim/optimizer.h"

namespace floe::optim {

struct OptimizerType;

struct SgdOptions {
  double momentum = 0;
  DecayRule decay;
  RateRule rates;
};

class Sgd final : public Optimizer {
 public:
  static OptimizerType type();  // for the registry

  Sgd(shard::Engine& engine, SgdOptions options, std::size_t set = 0);
  std::string kind() const override { return "SGD"; }
  std::vector<ParameterGroup> parameter_groups() const override;

 protected:
  void update(double factor) override;

 private:
  SgdOptions options_;
};

}  // namespace floe::optim
