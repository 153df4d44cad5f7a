// AdamW, as torch.optim.AdamW: two moments, bias correction, decay apart from the gradient.
#pragma once

#include <string>
#include <vector>

#include "floe/optim/optimizer.h"

namespace floe::optim {

struct OptimizerType;

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  DecayRule decay;
  RateRule rates;
};

class AdamW final : public Optimizer {
 public:
  static OptimizerType type();  // for the registry

  AdamW(shard::Engine& engine, AdamWOptions options, std::size_t set = 0);
  std::string kind() const override { return "AdamW"; }
  std::vector<ParameterGroup> parameter_groups() const override;

 protected:
  void update(double factor) override;

 private:
  AdamWOptions options_;
};

}  // namespace floe::optim
