// The block `log:`: what a run writes about itself. The sinks and the diagnostics own their parts
// of it.
#pragma once

#include <cstdint>
#include <optional>

#include "floe/observe/diagnostics/diagnostics_config.h"
#include "floe/observe/sinks/sink.h"

namespace floe {

struct LogConfig {
  std::int64_t every_steps = 10;
  observe::SinkConfigs sinks;  // their keys stand beside the others: jsonl, tensorboard, wandb, …
  std::optional<DiagnosticsConfig> diagnostics = DiagnosticsConfig{};
  // What a device can do, for MFU; null: known for some GPUs.
  std::optional<double> peak_tflops;
};
void describe(config::Schema<LogConfig>& s);

}  // namespace floe
