// The same run on more and more GPUs: a table, JSON, and a page with curves.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "floe/plan/step/step.h"

namespace floe::plan {

// "8..1024" (doubling) or "8,24,96". Throws ConfigError.
std::vector<int> parse_worlds(const std::string& text);

struct WorldRow {
  StepReport step;
  double efficiency = 1;    // tokens of a GPU in a second, against the first row
  double batch_factor = 1;  // how many times the batch would fit, as memory grows with it
};

struct Worlds {
  std::string title;
  std::vector<WorldRow> rows;
};

Worlds plan_worlds(const PlanSubject& subject, const StepSettings& settings,
                   const std::vector<int>& worlds);

std::string to_text(const Worlds& worlds);
nlohmann::ordered_json to_json(const Worlds& worlds);
// Self-contained.
std::string to_html(const Worlds& worlds);

}  // namespace floe::plan
