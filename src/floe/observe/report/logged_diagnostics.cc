#include "floe/observe/report/logged_diagnostics.h"

#include <algorithm>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"

namespace floe::report {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t kMostFileBytes = 256 * kMiB;
// Of bytes and elements: sums stay far from overflow.
constexpr std::int64_t kMostCount = 1LL << 50;
constexpr double kMostSeconds = 1e12;
constexpr std::size_t kMostTurns = 1000, kMostSwitches = 100, kMostOwners = 200;

// Reads the members of one object; errors name the file and the member.
class Members {
 public:
  Members(const json& object, const std::string& where) : object_(object), where_(where) {
    require<DataError>(object.is_object(), where, " should be an object, found ", shown(object));
  }

  void get(const char* key, std::string& value) const {
    if (const json* found = find(key, &json::is_string, "a text"))
      value = found->get<std::string>();
  }
  void get(const char* key, bool& value) const {
    if (const json* found = find(key, &json::is_boolean, "true or false"))
      value = found->get<bool>();
  }
  void get(const char* key, std::int64_t& value) const {
    const json* found = find(key, &json::is_number_integer, "an integer");
    if (!found) return;
    value = found->get<std::int64_t>();
    require<DataError>(value >= 0 && value <= kMostCount, where_, ".", key,
                       " should be a count, found ", shown(*found));
  }
  void get(const char* key, double& value) const {
    const json* found = find(key, &json::is_number, "a number");
    if (!found) return;
    value = found->get<double>();
    require<DataError>(value >= 0 && value <= kMostSeconds, where_, ".", key,
                       " should be a time in seconds, found ", shown(*found));
  }
  template <class Item, class Read>
  void list(const char* key, std::vector<Item>& items, const Read& read) const {
    const json* found = find(key, &json::is_array, "a list");
    if (!found) return;
    for (const json& element : *found)
      items.push_back(read(element, str(where_, ".", key, "[", items.size(), "]")));
  }

 private:
  const json* find(const char* key, bool (json::*is_right)() const noexcept,
                   const char* wanted) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return nullptr;
    require<DataError>(((*found).*is_right)(), where_, ".", key, " should be ", wanted, ", found ",
                       shown(*found));
    return &*found;
  }
  const json& object_;
  std::string where_;
};

std::string read_text_item(const json& value, const std::string& where) {
  require<DataError>(value.is_string(), where, " should be a text, found ", shown(value));
  return value.get<std::string>();
}

UnitGroup read_group(const json& value, const std::string& where) {
  UnitGroup group;
  const Members members(value, where);
  members.get("name", group.name);
  members.get("dtype", group.dtype);
  members.get("trainable", group.trainable);
  members.get("resident", group.resident);
  members.get("numel", group.numel);
  members.get("shard_bytes", group.shard_bytes);
  return group;
}

Unit read_unit(const json& value, const std::string& where) {
  Unit unit;
  const Members members(value, where);
  members.get("name", unit.name);
  members.get("class", unit.class_name);
  members.get("checkpointed", unit.checkpointed);
  members.list("groups", unit.groups, read_group);
  return unit;
}

RankBytes read_rank(const json& value, const std::string& where) {
  RankBytes rank;
  const Members members(value, where);
  members.get("rank", rank.rank);
  members.get("trainable_bytes", rank.trainable_bytes);
  members.get("frozen_bytes", rank.frozen_bytes);
  members.get("padding_bytes", rank.padding_bytes);
  return rank;
}

MemoryPoint read_memory(const json& value, const std::string& where) {
  MemoryPoint memory;
  const Members members(value, where);
  members.get("batch", memory.batch);
  members.get("rank", memory.rank);
  members.get("point", memory.point);
  members.get("hint", memory.hint);
  members.get("current_bytes", memory.current_bytes);
  members.get("peak_bytes", memory.peak_bytes);
  return memory;
}

UnitTime read_time(const json& value, const std::string& where) {
  UnitTime time;
  const Members members(value, where);
  members.get("unit", time.unit);
  members.get("class", time.class_name);
  members.get("gather_wait_s", time.gather_wait_s);
  members.get("forward_s", time.forward_s);
  members.get("backward_s", time.backward_s);
  members.get("reduce_wait_s", time.reduce_wait_s);
  return time;
}

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
    if (count >= 0 && count <= kMostCount) bytes.emplace_back(name, count);
  }
  return bytes;
}

}  // namespace

LoggedDiagnostics read_diagnostics(const std::string& path) {
  const json text = parse_json(read_text(path, kMostFileBytes), path);
  const Members members(text, str("'", path, "'"));
  LoggedDiagnostics diagnostics;
  members.list("strategy", diagnostics.strategy, read_text_item);
  members.list("notes", diagnostics.notes, read_text_item);
  members.list("units", diagnostics.units, read_unit);
  members.list("ranks", diagnostics.ranks, read_rank);
  members.list("memory", diagnostics.memory, read_memory);
  members.list("times", diagnostics.times, read_time);
  return diagnostics;
}

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
