// The optimizers that a configuration can name. Each is a file beside this one;
// docs/adding-an-optimizer.md adds one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "floe/optim/optim_config.h"

namespace floe::shard {
class Engine;
}

namespace floe::optim {

class Optimizer;
struct DecayRule;
struct RateRule;

struct OptimizerType {
  std::string_view name;  // of train.optimizer.type
  std::string_view help;  // what it keeps of each trainable element
  // Of train.optimizer that it reads, beside what all of them do: lr, lr_patterns, weight_decay and
  // decay.
  std::vector<std::string_view> keys;
  // What it keeps per element with these settings, as its state is called in checkpoints.
  std::vector<std::string> (*state)(const OptimizerConfig& config) = nullptr;
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config, shard::Engine& engine,
                                     std::size_t set, const DecayRule& decay,
                                     const RateRule& rates) = nullptr;
};

// In the order of OptimizerKind.
const std::vector<OptimizerType>& optimizer_types();
const OptimizerType& optimizer_type(OptimizerKind kind);

// How many values the optimizer keeps per trainable element.
int num_moments(const OptimizerConfig& config);

// For a set of the engine. The rules are the configuration's, as far as they concern the set.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, shard::Engine& engine,
                                          std::size_t set, const DecayRule& decay,
                                          const RateRule& rates);

}  // namespace floe::optim
