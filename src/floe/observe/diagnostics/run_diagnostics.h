// What a run says about its own shape: the resolved strategy, the unit tree, dtypes as they are,
// memory point by point in the first batches, time per unit, a trace on request. Everything is
// printed with the cause that it points to, and written to RUN/diagnostics.json for `floe report`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/comm/world.h"
#include "floe/observe/diagnostics/diagnostics_config.h"
#include "floe/observe/diagnostics/memory_watch.h"
#include "floe/observe/diagnostics/strategy_lines.h"
#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"

namespace floe::diagnostics {

class RunDiagnostics {
 public:
  // `config`: null switches everything off. `folder` is RUN. Says at once what the strategy is.
  RunDiagnostics(const std::optional<DiagnosticsConfig>& config, const StrategySettings& settings,
                 std::string folder, comm::World& world);
  ~RunDiagnostics();

  // After sharding. Each rank logs its own line; rank 0 the rest. Throws ShardError when a dtype
  // that was configured did not arrive.
  void begin(shard::Engine& engine, const std::vector<optim::Optimizer*>& optimizers);
  // At this point of a batch. Cheap when nothing is looked at.
  void mark(MemoryPoint point);
  // After an update: numbers for the sinks (names begin with "memory/" and "time/"), none when
  // there is nothing new or log.diagnostics.to_loggers is off.
  std::vector<std::pair<std::string, double>> after_step(std::int64_t step);
  // The device's peak in the last batch where memory was looked at, which resets the allocator's
  // own peak at every point; else 0.
  std::int64_t peak_bytes() const;
  // The end of the run, or its failure: what is open is written.
  void end();

 private:
  struct State;
  std::unique_ptr<State> state_;  // null: log.diagnostics is off
};

}  // namespace floe::diagnostics
