#include "floe/train/step/precision.h"

#include "floe/strategy/strategy_options.h"
#include "floe/train/step/loss_scale.h"

namespace floe::train {
namespace {

std::string layout_name(checkpoint::Layout layout) {
  for (const auto& [name, value] : enum_names(layout))
    if (value == layout) return std::string(name);
  return "?";
}

}  // namespace

c10::ScalarType compute_dtype(const RunConfig& config) {
  return strategy::scalar_type_of(config.strategy.mixed_precision.param);
}

std::optional<double> first_loss_scale(const RunConfig& config) {
  if (!config.computes_in_fp16()) return std::nullopt;
  return config.precision.loss_scale.value_or(kFirstLossScale);
}

diagnostics::StrategySettings strategy_settings(const RunConfig& config,
                                                const config::Value& values, int world_size) {
  return {.strategy = config.strategy,
          .precision = config.precision,
          .state_dict_type = layout_name(config.checkpoint.state_dict_type),
          .values = values,
          .world_size = world_size,
          .loss_scale = first_loss_scale(config)};
}

std::vector<std::string> precision_lines(const RunConfig& config, const config::Value& values) {
  return diagnostics::precision_lines(strategy_settings(config, values));
}

}  // namespace floe::train
