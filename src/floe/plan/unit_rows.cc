#include "floe/plan/unit_rows.h"

#include <cctype>
#include <map>

#include "floe/core/str.h"

namespace floe::plan {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// The name with every number replaced by '#'.
std::string shape_of(const std::string& name) {
  std::string shape;
  for (const char c : name) {
    if (!is_digit(c))
      shape += c;
    else if (shape.empty() || shape.back() != '#')
      shape += '#';
  }
  return shape;
}

// Equal for units whose lines would be equal.
std::string key_of(const shard::ShardPlan& plan, const std::vector<std::uint64_t>& backward,
                   std::size_t unit_index) {
  const shard::PlannedUnit& unit = plan.units[unit_index];
  std::string key = str(shape_of(unit.name), " ", unit.class_name);
  for (const std::size_t g : unit.groups) {
    const shard::PlannedGroup& group = plan.groups[g];
    if (group.units.size() > 1) return str(key, " unit ", unit_index);  // tied: alone
    key += str(" | ", group.sets, " ", group.resident, backward[g], " ", name_of(group.strategy),
               " ", group.layout.numel(), " ", group.shard_size, " ",
               c10::toString(group.storage_dtype), " ", c10::toString(group.param_dtype));
  }
  return key;
}

std::string label_of(const shard::ShardPlan& plan, const UnitRow& row) {
  const std::string& first = plan.units[row.units.front()].name;
  if (row.units.size() == 1) return plan.units[row.units.front()].label();
  const std::string& last = plan.units[row.units.back()].name;
  // Where they differ, from the beginning of a number to its end.
  std::size_t begin = 0, end = 0;
  while (begin < first.size() && begin < last.size() && first[begin] == last[begin]) ++begin;
  while (begin > 0 && is_digit(first[begin - 1])) --begin;
  const auto from_end = [](const std::string& text, std::size_t i) {
    return text[text.size() - 1 - i];
  };
  while (end < first.size() - begin && end < last.size() - begin &&
         from_end(first, end) == from_end(last, end))
    ++end;
  while (end > 0 && is_digit(first[first.size() - end])) --end;
  return str(first.substr(0, first.size() - end), " … ",
             last.substr(begin, last.size() - end - begin), first.substr(first.size() - end));
}

}  // namespace

std::vector<std::uint64_t> backward_sets(const shard::ShardPlan& plan) {
  std::vector<std::uint64_t> sets(plan.groups.size(), 0);
  shard::ShardPlan at = plan;
  for (std::size_t set = 0; set < plan.sets.size(); ++set) {
    at.activate(set);
    for (std::size_t g = 0; g < sets.size(); ++g)
      if (at.groups[g].needed_in_backward) sets[g] |= std::uint64_t{1} << set;
  }
  return sets;
}

std::vector<UnitRow> unit_rows(const shard::ShardPlan& plan) {
  const std::vector<std::uint64_t> backward = backward_sets(plan);
  std::vector<UnitRow> rows;
  std::map<std::string, std::size_t> known;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.units[u].groups.empty()) continue;
    const auto [place, is_new] = known.emplace(key_of(plan, backward, u), rows.size());
    if (is_new) rows.emplace_back();
    rows[place->second].units.push_back(u);
  }
  for (UnitRow& row : rows) row.label = label_of(plan, row);
  return rows;
}

}  // namespace floe::plan
