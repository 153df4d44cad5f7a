#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/core/table.h"
#include "floe/plan/report.h"
#include "floe/strategy/strategy_options.h"

namespace floe::plan {

using strategy::name_of;  // of torch's dtypes

// ---- units that are alike ----

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

// Of each group: while which sets train backward needs it.
std::vector<shard::SetMask> backward_sets(const shard::ShardPlan& plan) {
  std::vector<shard::SetMask> sets(plan.groups.size());
  shard::ShardPlan at = plan;
  for (std::size_t set = 0; set < plan.sets.size(); ++set) {
    at.activate(set);
    for (std::size_t g = 0; g < sets.size(); ++g)
      if (at.groups[g].needed_in_backward) sets[g].add(set);
  }
  return sets;
}

// Equal for units whose lines would be equal.
std::string key_of(const shard::ShardPlan& plan, const std::vector<shard::SetMask>& backward,
                   std::size_t unit_index) {
  const shard::PlannedUnit& unit = plan.units[unit_index];
  std::string key = str(shape_of(unit.name), " ", unit.class_name);
  for (const std::size_t g : unit.groups) {
    const shard::PlannedGroup& group = plan.groups[g];
    if (group.units.size() > 1) return str(key, " unit ", unit_index);  // tied: alone
    key += str(" | ", group.sets.bits(), " ", group.resident, backward[g].bits(), " ",
               name_of(group.strategy), " ", group.layout.numel(), " ", group.shard_size, " ",
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

std::vector<UnitRow> unit_rows(const shard::ShardPlan& plan) {
  const std::vector<shard::SetMask> backward = backward_sets(plan);
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

// ---- the tables ----

namespace {

std::string ranks(int count) { return count == 1 ? "1 rank" : str(count, " ranks"); }

std::string percent(std::int64_t part, std::int64_t whole) {
  const double share =
      whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
  char text[16];
  std::snprintf(text, sizeof text, "%.*f%%", share < 0.1 ? 3 : share < 10 ? 2 : 1, share);
  return text;
}

std::string some(std::int64_t bytes) { return bytes > 0 ? format_bytes(bytes) : "-"; }

std::string header(const PlanReport& report) {
  const auto& strategy = report.subject.strategy;
  const std::int64_t all = report.trainable_numel + report.frozen_numel;
  std::string out = str(report.subject.type, " with ", format_count(all), " parameters: ");
  if (report.trainable_numel == 0)
    out += "all of them frozen";
  else if (report.frozen_numel == 0)
    out += "all of them train";
  else
    out +=
        str(format_count(report.trainable_numel), " train (", percent(report.trainable_numel, all),
            "), ", format_count(report.frozen_numel), " are frozen");

  const int world = report.plan.world_size;
  const shard::StrategyEntry& sharding = shard::entry_of(strategy.sharding);
  out += str("\n", ranks(world), ", ", sharding.name);
  if (sharding.sliced_over == shard::SlicedOver::neighbours)
    out += str(" (slices over ", strategy.hybrid_shard_size, ", ",
               world / strategy.hybrid_shard_size, " copies)");
  if (strategy.frozen.sharding == shard::FrozenSharding::node)
    out += str(" (frozen: over ", strategy.hybrid_shard_size, ", ",
               world / strategy.hybrid_shard_size, " copies)");
  out += str(", computes in ", name_of(strategy.mixed_precision.param), ", reduces gradients in ",
             name_of(strategy.mixed_precision.reduce));
  if (strategy.cpu_offload) out += ", slices in host memory";
  if (const int passes = report.plan.passes_per_update; passes > 1)
    out += str(
        "\n", passes, " passes per update, whose gradients add up ",
        report.plan.accumulates() == shard::Accumulate::local ? "whole on each rank" : "in slices");
  return out + "\n";
}

std::string kind_of(const shard::ShardPlan& plan, const shard::PlannedGroup& group) {
  if (group.trainable) return plan.sets.size() > 1 ? plan.names_of(group.sets, "+") : "trainable";
  return group.resident ? "resident" : "frozen";
}

// Whether backward needs the group, or while which sets train.
std::string backward_words(const shard::ShardPlan& plan, shard::SetMask sets) {
  if (sets.empty()) return "no";
  return sets == shard::SetMask::all(plan.sets.size()) ? "yes" : plan.names_of(sets, ", ");
}

// As it is while it trains.
shard::PlannedGroup in_training(shard::PlannedGroup group) {
  if (group.trainable) {
    group.storage_dtype = group.master_dtype;
    group.multiplied = false;
  }
  return group;
}

bool rests_in_eight_bit(const shard::PlannedGroup& group) {
  return group.trainable && group.eight_bit_at_rest();
}

std::string stored(const shard::PlannedGroup& group) {
  const std::string rest =
      rests_in_eight_bit(group) ? str(", rests ", name_of(group.rest_dtype)) : "";
  if (group.storage_dtype == group.param_dtype || group.multiplied)
    return str(name_of(group.storage_dtype), rest);
  return str(name_of(group.storage_dtype), "→", name_of(group.param_dtype), rest);
}

std::string units_table(const shard::ShardPlan& plan) {
  using enum Align;
  bool repeated = false;
  const std::vector<shard::SetMask> backward = backward_sets(plan);
  Table table({left, left, left, right, right, right, left, left}, 0);
  table.row({"unit", "class", "group", "elements", "gathered", "per rank", "stored", "backward"});
  for (const UnitRow& row : unit_rows(plan)) {
    const std::size_t home = row.units.front();
    const shard::PlannedUnit& unit = plan.units[home];
    const std::size_t count = row.units.size();
    repeated = repeated || count > 1;
    std::string label = row.label;
    std::string kind = count > 1 ? str(count, " × ", unit.class_name) : unit.class_name;
    for (const std::size_t g : unit.groups) {
      const shard::PlannedGroup group = in_training(plan.groups[g]);
      if (group.units.front() != home) {
        table.row({label, kind, str("as in ", plan.units[group.units.front()].label())});
      } else {
        table.row({label, kind, kind_of(plan, group), format_count(group.layout.numel()),
                   some(group.gathered_bytes()), format_bytes(group.slice_bytes()), stored(group),
                   backward_words(plan, backward[g])});
      }
      label.clear();
      kind.clear();
    }
  }
  return table.text() + (repeated ? "Of units that repeat, the numbers are those of one.\n" : "");
}

std::string padding_line(const PlanReport& report) {
  const Padding& padding = report.padding;
  if (padding.num_groups == 0) return "";
  return str(padding.num_groups, " of ", report.plan.groups.size(),
             " groups are padded to slices of whole 128 bytes: ", padding.numel,
             padding.numel == 1 ? " zero fills" : " zeros fill", " the last ones.\n");
}

std::string holds_table(const PlanReport& report) {
  const Holdings& holdings = report.holdings;
  const shard::HeldBytes& held = holdings.held;
  Table table({Align::left, Align::right, Align::right}, 2);
  table.row({"Each rank holds", "between steps", "at most"});
  const auto row = [&](const std::string& what, std::int64_t between, std::int64_t most) {
    if (most > 0) table.row({what, some(between), some(most)});
  };
  const auto both = [&](const std::string& what, std::int64_t bytes) { row(what, bytes, bytes); };
  const auto step = [&](const std::string& what, std::int64_t bytes) { row(what, 0, bytes); };
  both("trainable slices (masters)", held.trainable_slices);
  both("frozen slices", held.frozen_slices - holdings.resident);
  both("resident frozen parameters", holdings.resident);
  both(str("optimizer state (", report.subject.state_words(), ")"), held.optimizer_state);
  step("gradients of the slices", held.gradient_slices);
  step("gathered or cast parameters", held.pool);
  step("gradients before reduction", held.gradient_buffers);
  table.row({"together, without activations", format_bytes(held.between_steps()),
             format_bytes(held.peak())});
  if (holdings.host_peak > 0)
    table.row({"of that in host memory", format_bytes(holdings.host_between_steps),
               format_bytes(holdings.host_peak)});
  const shard::HeldBytes& whole = report.unsharded_holdings.held;
  table.row(
      {"the same unsharded", format_bytes(whole.between_steps()), format_bytes(whole.peak())});
  return table.text();
}

// One line per set, and what the largest comes to.
std::string phases_table(const PlanReport& report) {
  using enum Align;
  Table table({left, left, right, right, right, right, right, right, right}, 2);
  table.row({"Each rank holds, in phase", "at rest", "trains", "masters", "resting", "frozen",
             "state", "between steps", "at most"});
  std::int64_t most_between = 0, most = 0, most_host = 0;
  for (const PhaseReport& phase : report.phases) {
    const shard::HeldBytes& held = phase.holdings.held;
    table.row({phase.set.name, name_of(phase.set.rest), format_count(phase.trainable_numel),
               some(held.trainable_slices), some(held.resting_slices), some(held.frozen_slices),
               some(held.optimizer_state + held.resting_state), format_bytes(held.between_steps()),
               format_bytes(held.peak())});
    most_between = std::max(most_between, held.between_steps());
    most = std::max(most, held.peak());
    most_host = std::max(most_host, phase.holdings.host_between_steps + phase.holdings.store);
  }
  const shard::HeldBytes& whole = report.unsharded_holdings.held;
  table.row({"at most, without activations", "", "", "", "", "", "", format_bytes(most_between),
             format_bytes(most)});
  table.row({"the same unsharded", "", "", "", "", "", "", format_bytes(whole.between_steps()),
             format_bytes(whole.peak())});
  std::string out = table.text();
  if (most_host > 0) {
    Table host({left, right, right}, 2);
    host.row({"In host memory, in phase", "of that", "beside it, of sets that rest"});
    for (const PhaseReport& phase : report.phases)
      host.row(
          {phase.set.name, some(phase.holdings.host_between_steps), some(phase.holdings.store)});
    out += "\n" + host.text();
  }
  return out;
}

std::string moves_heading(const PlanReport& report) {
  const int passes = report.plan.passes_per_update;
  return passes == 1 ? "Each rank moves per forward and backward"
                     : str("Each rank moves per update of ", passes, " passes");
}

std::string phase_moves_table(const PlanReport& report) {
  using enum Align;
  if (report.plan.world_size == 1) return "One rank alone moves nothing; world=N plans for N.\n";
  Table table({left, right, right, right, right, right, right}, 2);
  table.row({moves_heading(report), "all-gathers", "bytes", "reduce-scatters", "bytes",
             "all-reduces", "bytes"});
  for (const PhaseReport& phase : report.phases) {
    const shard::MovedBytes& moved = phase.moved;
    table.row({phase.set.name, str(moved.gathers), some(moved.gathered), str(moved.reduce_scatters),
               some(moved.reduce_scattered), str(moved.all_reduces), some(moved.all_reduced)});
  }
  const bool rows_are_shared = std::any_of(
      report.plan.groups.begin(), report.plan.groups.end(), [](const shard::PlannedGroup& group) {
        return rests_in_eight_bit(group) && group.shard_size > 1;
      });
  return table.text() + (rows_are_shared
                             ? "A switch of phases moves 8 bytes of each rank for every "
                               "group that rests in 8 bits, and no parameter.\n"
                             : "A switch of phases moves nothing between ranks.\n");
}

std::string moves_table(const PlanReport& report) {
  const shard::MovedBytes& moved = report.moved;
  const shard::MovedBytes& whole = report.unsharded_moved;
  if (report.plan.world_size == 1) return "One rank alone moves nothing; world=N plans for N.\n";
  Table table({Align::left, Align::right, Align::right}, 2);
  table.row({moves_heading(report), "times", "bytes"});
  const auto row = [&](const char* what, std::int64_t times, std::int64_t bytes) {
    table.row({what, str(times), some(bytes)});
  };
  row("all-gathers", moved.gathers, moved.gathered);
  row("reduce-scatters", moved.reduce_scatters, moved.reduce_scattered);
  row("all-reduces", moved.all_reduces, moved.all_reduced);
  row("the same unsharded, all-reduces", whole.all_reduces, whole.all_reduced);
  return table.text();
}

}  // namespace

std::string to_text(const PlanReport& report) {
  const bool several = !report.phases.empty();
  return str(header(report), "\n", units_table(report.plan), padding_line(report), "\n",
             several ? phases_table(report) : holds_table(report), "\n",
             several ? phase_moves_table(report) : moves_table(report));
}

}  // namespace floe::plan
