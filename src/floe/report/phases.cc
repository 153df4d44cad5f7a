#include "floe/report/phases.h"

#include <algorithm>

namespace floe::report {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostTurns = 1000, kMostSwitches = 100, kMostOwners = 200;
constexpr std::int64_t kMostBytes = 1LL << 50;  // sums stay far from overflow
constexpr double kMostSeconds = 1e12;

const ordered_json* member(const ordered_json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

std::string text_of(const ordered_json& object, const char* key) {
  const ordered_json* value = member(object, key);
  return value && value->is_string() ? value->get<std::string>() : "";
}

PhaseSwitch::Bytes bytes_of(const ordered_json& memory, const char* key) {
  PhaseSwitch::Bytes bytes;
  const ordered_json* owners = member(memory, key);
  if (!owners || !owners->is_object()) return bytes;
  for (const auto& [name, value] : owners->items()) {
    if (!value.is_number_integer() || bytes.size() == kMostOwners) continue;
    const auto count = value.get<std::int64_t>();
    if (count >= 0 && count <= kMostBytes) bytes.emplace_back(name, count);
  }
  return bytes;
}

}  // namespace

void Phases::add_step(std::int64_t step, const std::string& name) {
  if (has_more_turns) return;
  if (turns.empty() || turns.back().name != name) {
    has_more_turns = turns.size() == kMostTurns;
    if (has_more_turns) return;
    turns.push_back({name, step});
  }
  turns.back().last_step = step;
  ++turns.back().num_steps;
}

void Phases::add_switch(std::int64_t step, const ordered_json& content) {
  if (switches.size() == kMostSwitches) {
    ++num_more_switches;
    return;
  }
  PhaseSwitch found{.step = step, .from = text_of(content, "from"), .to = text_of(content, "to")};
  if (const ordered_json* seconds = member(content, "seconds"); seconds && seconds->is_number())
    found.seconds = std::clamp(seconds->get<double>(), 0.0, kMostSeconds);
  if (const ordered_json* memory = member(content, "memory")) {
    found.before = bytes_of(*memory, "before");
    found.after = bytes_of(*memory, "after");
  }
  switches.push_back(std::move(found));
}

std::vector<std::string> Phases::names() const {
  std::vector<std::string> names;
  for (const PhaseTurn& turn : turns)
    if (std::find(names.begin(), names.end(), turn.name) == names.end()) names.push_back(turn.name);
  return names;
}

}  // namespace floe::report
