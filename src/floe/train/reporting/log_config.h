// The block `log:`: what a run writes about itself.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "floe/config/codec.h"

namespace floe {
namespace config {
template <class T>
class Schema;
}

struct WandbConfig {
  enum class Mode {
    disabled,
    offline,  // a folder that `wandb sync` uploads
    online,   // the same, handed to the user's own `wandb sync` while the run goes on
  };

  Mode mode = Mode::disabled;
  std::string project = "floe";
  std::optional<std::string> entity;
  bool checkpoints = false;  // are put into the W&B run as well
};
inline auto enum_names(WandbConfig::Mode) {
  using enum WandbConfig::Mode;
  return std::to_array<std::pair<std::string_view, WandbConfig::Mode>>(
      {{"disabled", disabled}, {"offline", offline}, {"online", online}});
}
void describe(config::Schema<WandbConfig>& s);

struct DiagnosticsConfig {
  std::int64_t batches = 3;                 // whose memory is looked at, point by point
  std::int64_t tree_top_k = 5;              // units and modules that are named
  bool to_loggers = true;                   // numbers go to the loggers too
  std::optional<std::int64_t> trace_steps;  // of the beginning, into RUN/trace; null: no trace
};
void describe(config::Schema<DiagnosticsConfig>& s);

struct LogConfig {
  std::int64_t every_steps = 10;
  bool tensorboard = true, jsonl = true;
  std::optional<WandbConfig> wandb = WandbConfig{};
  std::optional<DiagnosticsConfig> diagnostics = DiagnosticsConfig{};
  // What a device can do, for MFU; null: known for some GPUs.
  std::optional<double> peak_tflops;
};
void describe(config::Schema<LogConfig>& s);

}  // namespace floe
