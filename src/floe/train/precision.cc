#include "floe/train/precision.h"

#include "floe/plan/strategy_options.h"
#include "floe/train/loss_scale.h"

namespace floe::train {

c10::ScalarType compute_dtype(const RunConfig& config) {
  return plan::scalar_type_of(config.strategy.mixed_precision.param);
}

std::vector<std::string> precision_lines(const RunConfig& config, const config::Value& values) {
  const auto from = [&](const char* key) {
    const config::Value* value = values.at(key);
    return str(" (", key, ", ", value ? value->origin.text() : "default", ")");
  };
  const MixedPrecisionConfig& mixed = config.strategy.mixed_precision;
  const DType frozen = config.strategy.frozen.dtype.value_or(mixed.param);
  std::vector<std::string> lines{
      str("parameters are gathered and computed with in ", name_of(mixed.param),
          from("strategy.mixed_precision.param")),
      str("what trains is stored in fp32, what is frozen in ", name_of(frozen),
          config.strategy.frozen.dtype ? from("strategy.frozen.dtype") : ""),
      str("gradients are reduced in ", name_of(mixed.reduce),
          from("strategy.mixed_precision.reduce")),
      str("buffers are ", name_of(mixed.buffer), from("strategy.mixed_precision.buffer")),
  };
  if (config.precision.autocast)
    lines.push_back(str("forwards run under autocast in ", name_of(*config.precision.autocast),
                        from("precision.autocast"),
                        "; it changes nothing of the above, strategy.mixed_precision wins"));
  else
    lines.push_back("forwards run without autocast");
  if (config.computes_in_fp16())
    lines.push_back(str("the loss is scaled, at first by ",
                        config.precision.loss_scale.value_or(kFirstLossScale),
                        from("precision.loss_scale")));
  return lines;
}

}  // namespace floe::train
