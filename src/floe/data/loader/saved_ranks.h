// The states that the ranks of a run saved.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

namespace floe::data {

// They may lie in files: a rank of the same world asks for its own alone.
struct SavedRanks {
  std::int64_t world = 0;  // how many there are; 0: nothing was saved
  std::function<nlohmann::json(std::int64_t rank)> of;
  std::function<std::vector<nlohmann::json>()> all;

  // In order of the ranks. They must live as long as this.
  static SavedRanks held(std::span<const nlohmann::json> states) {
    return {static_cast<std::int64_t>(states.size()),
            [states](std::int64_t rank) { return states[static_cast<std::size_t>(rank)]; },
            [states] { return std::vector<nlohmann::json>(states.begin(), states.end()); }};
  }
};

}  // namespace floe::data
