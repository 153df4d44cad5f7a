// The numbers of one optimizer step, as every sink gets them.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace floe::observe {

// Values and texts are in the order in which they are written; docs/metrics.md says what each name
// means. What else happened at that step (validation, a phase switch) belongs to the same record:
// W&B and whoever counts the lines of metrics.jsonl rely on one record per step.
struct Record {
  std::int64_t step = 0;
  double time_s = 0;                                       // unix time
  std::vector<std::pair<std::string, double>> values;      // names are unique; any double, NaN too
  std::vector<std::pair<std::string, std::string>> texts;  // the phase, say
  // What is worth more than a number, under names of its own; only metrics.jsonl keeps it.
  nlohmann::ordered_json details = nlohmann::ordered_json::object();
};

// The clock of Record::time_s.
inline double unix_time_s() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

}  // namespace floe::observe
