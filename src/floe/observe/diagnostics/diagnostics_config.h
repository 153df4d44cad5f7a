// The block `log.diagnostics`.
#pragma once

#include <cstdint>
#include <optional>

namespace floe {
namespace config {
template <class T>
class Schema;
}

struct DiagnosticsConfig {
  std::int64_t batches = 3;                 // whose memory is looked at, point by point
  std::int64_t tree_top_k = 5;              // units and modules that are named
  bool to_loggers = true;                   // numbers go to the sinks too
  std::optional<std::int64_t> trace_steps;  // of the beginning, into RUN/trace; null: no trace
};
void describe(config::Schema<DiagnosticsConfig>& s);

}  // namespace floe
