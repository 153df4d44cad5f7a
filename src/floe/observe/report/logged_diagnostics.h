// What a run has logged about its own engine: RUN/diagnostics.json (docs/metrics.md has the
// format), and the phases in the lines of metrics.jsonl.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace floe::report {

struct UnitGroup {
  std::string name, dtype;
  bool trainable = false, resident = false;
  std::int64_t numel = 0, shard_bytes = 0;
};

struct Unit {
  std::string name, class_name;
  bool checkpointed = false;
  std::vector<UnitGroup> groups;
};

struct RankBytes {
  std::int64_t rank = 0, trainable_bytes = 0, frozen_bytes = 0;
  std::int64_t padding_bytes = 0;  // of both: zeros that fill slices
};

// Seconds of a step that one unit takes on rank 0.
struct UnitTime {
  std::string unit, class_name;
  double gather_wait_s = 0, forward_s = 0, backward_s = 0, reduce_wait_s = 0;
  double sum_s() const { return gather_wait_s + forward_s + backward_s + reduce_wait_s; }
};

// What one rank held at one point of a batch.
struct MemoryPoint {
  std::int64_t batch = 0, rank = 0;
  std::string point, hint;
  std::int64_t current_bytes = 0, peak_bytes = 0;
};

struct LoggedDiagnostics {
  std::vector<std::string> strategy, notes;
  std::vector<Unit> units;
  std::vector<RankBytes> ranks;
  std::vector<MemoryPoint> memory;
  std::vector<UnitTime> times;
};

// Keys that are not there leave their part empty. Throws DataError for a value of another type.
LoggedDiagnostics read_diagnostics(const std::string& path);

// Steps in a row that trained the same phase.
struct PhaseTurn {
  std::string name;
  std::int64_t first_step = 0, last_step = 0, num_steps = 0;
};

struct PhaseSwitch {
  using Bytes = std::vector<std::pair<std::string, std::int64_t>>;  // by owner, as it was written

  std::int64_t step = 0;  // the first one after it
  std::string from, to;
  double seconds = 0;
  Bytes before, after;  // "host." is in front of owners of host memory
};

// Which set of parameters trained when, and whose memory it was around each switch.
struct Phases {
  std::vector<PhaseTurn> turns;
  std::vector<PhaseSwitch> switches;
  bool has_more_turns = false;  // than a page can show
  std::int64_t num_more_switches = 0;

  // The text `phase` of a step's record.
  void add_step(std::int64_t step, const std::string& name);
  // The object `phase_switch` of a step's record; members that are missing or of another kind are
  // left out.
  void add_switch(std::int64_t step, const nlohmann::ordered_json& content);

  // Every phase once, in the order in which they first trained.
  std::vector<std::string> names() const;
};

}  // namespace floe::report
