// Which set of parameters trained when, and whose memory it was around each switch: from the lines of
// metrics.jsonl.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace floe::report {

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

struct Phases {
  std::vector<PhaseTurn> turns;
  std::vector<PhaseSwitch> switches;
  bool has_more_turns = false;  // than a page can show
  std::int64_t num_more_switches = 0;

  // The text `phase` of a step's record.
  void add_step(std::int64_t step, const std::string& name);
  // The object `phase_switch` of a step's record; members that are missing or of another kind are left
  // out.
  void add_switch(std::int64_t step, const nlohmann::ordered_json& content);

  // Every phase once, in the order in which they first trained.
  std::vector<std::string> names() const;
};

}  // namespace floe::report
