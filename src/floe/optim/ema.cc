#include "floe/optim/ema.h"

#include <ATen/core/grad_mode.h>

#include "floe/core/error.h"

namespace floe::optim {

Ema::Ema(shard::Engine& engine, double decay) : engine_(engine), decay_(decay) {
  require<ConfigError>(decay >= 0 && decay < 1,
                       "train.ema.decay must be at least 0 and below 1, not ", decay);
  const at::AutoGradMode grad_off(false);
  for (const shard::FlatGroup* group : engine.trainable_groups())
    averages_.push_back(group->shard().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
}

void Ema::update() {
  const at::AutoGradMode grad_off(false);
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g)
    averages_[g].lerp_(groups[g]->shard().to(at::kFloat), 1 - decay_);
}

void Ema::restart() {
  const at::AutoGradMode grad_off(false);
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) averages_[g].copy_(groups[g]->shard());
}

void Ema::exchange() {
  const at::AutoGradMode grad_off(false);
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    at::Tensor values = groups[g]->shard();
    const at::Tensor kept = values.clone();
    values.copy_(averages_[g]);
    averages_[g].copy_(kept);
  }
}

std::int64_t Ema::state_bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& average : averages_) bytes += static_cast<std::int64_t>(average.nbytes());
  return bytes;
}

}  // namespace floe::optim
