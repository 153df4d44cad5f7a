// What the diagnostics of a run have found so far, as RUN/diagnostics.json keeps it for `floe
// report`. Each key is always there; see docs/diagnostics.md.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/observe/diagnostics/memory_watch.h"
#include "floe/observe/diagnostics/unit_tree.h"

namespace floe::diagnostics {

class Findings {
 public:
  std::vector<std::string> strategy;  // lines
  std::vector<std::string> notes;     // sentences
  std::vector<RankBytes> ranks;
  nlohmann::ordered_json units = nlohmann::ordered_json::array();
  nlohmann::ordered_json memory = nlohmann::ordered_json::array();
  nlohmann::ordered_json times = nlohmann::ordered_json::array();

  void add_memory(std::int64_t batch, int rank, const std::vector<PointMemory>& points);
  // A sentence that is there already is not said twice.
  void add_note(const std::string& note);

  // A sentence when the peak of some rank is more than a tenth above that of another; else empty.
  std::string uneven_memory() const;

  nlohmann::ordered_json json() const;
  // The file appears whole or not at all.
  void write(const std::string& path) const;
};

// A table of one batch.
std::vector<std::string> memory_lines(std::int64_t batch, const std::vector<PointMemory>& points);

}  // namespace floe::diagnostics
