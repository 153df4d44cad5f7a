#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/core/table.h"
#include "floe/plan/step/step.h"

namespace floe::plan {
namespace {

using Json = nlohmann::ordered_json;

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 0.1 ? "%.1f ms" : "%.0f ms", 1e3 * seconds);
  return text;
}

std::string memory_table(const PlanReport& report, const StepReport& step) {
  const shard::HeldBytes& held = report.holdings.held;
  const Machine& machine = step.settings.machine;
  Table table({Align::left, Align::right}, 2);
  table.row({machine.of_cores() ? "Memory of a rank in a step" : "Memory of a GPU in a step", ""});
  table.row({"between steps", format_bytes(held.between_steps())});
  table.row({"kept for backward", format_bytes(step.kept())});
  table.row({"pools, gradients, inputs, workspace",
             format_bytes(step.peak() - held.between_steps() - step.kept())});
  table.row({"at most", format_bytes(step.peak())});
  table.row({machine.of_cores()
                 ? str("of all ranks of the machine, of ", format_bytes(machine.memory.bytes))
                 : str("with context and slack, of ", format_bytes(machine.memory.bytes)),
             format_bytes(step.needed())});
  if (step.host_bytes > 0)
    table.row({"in host memory beside it, of activations", format_bytes(step.host_bytes)});
  std::string out = table.text();
  if (!step.fits())
    out += str("It does not fit: ", format_bytes(step.needed() - machine.memory.bytes),
               " too much; --best looks for what does.\n");
  return out;
}

std::string kept_table(const PlanReport& report, const StepReport& step) {
  Table table({Align::left, Align::right, Align::right}, 2);
  table.row({"Kept for backward, by unit", "of one", "together"});
  const auto& kept = step.trace.memory.kept_by_unit;
  for (const UnitRow& row : unit_rows(report.plan)) {
    std::int64_t sum = 0, most = 0;
    for (const std::size_t unit : row.units) {
      sum += kept[unit];
      most = std::max(most, kept[unit]);
    }
    if (sum > 0) table.row({row.label, format_bytes(most), format_bytes(sum)});
  }
  if (step.trace.memory.kept_outside > 0)
    table.row({"outside of units", "", format_bytes(step.trace.memory.kept_outside)});
  return table.text();
}

std::string time_table(const StepReport& step) {
  const StepTime& time = step.time;
  Table table({Align::left, Align::right}, 2);
  table.row({str("Time of an update on ", step.settings.machine.name), ""});
  const auto row = [&](const char* what, double seconds) {
    if (seconds > 0) table.row({what, milliseconds(seconds)});
  };
  row("matrix products", time.products);
  row("attention", time.attention);
  row("passes over memory", time.passes);
  row("between kernels", time.gaps);
  row("waiting for ranks, copies and the host", time.exposed);
  row("agreement and update", time.update_seconds);
  row("together", time.seconds);
  row("links inside of nodes are busy", time.intra_seconds);
  row("links between nodes are busy", time.inter_seconds);
  char speed[96];
  std::snprintf(speed, sizeof speed, "%.0f tokens/s, %.0f of them on each %s; ",
                step.tokens_per_second(), step.tokens_per_second() / step.world_size,
                step.settings.machine.of_cores() ? "rank" : "GPU");
  const double rate = time.flops / time.seconds;
  return str(table.text(), speed,
             step.settings.machine.of_cores()
                 ? str(format_count(static_cast<std::int64_t>(rate / 1e9)), " GFLOP/s, ")
                 : str(format_count(static_cast<std::int64_t>(rate / 1e12)), " TFLOP/s, "),
             std::lround(100 * step.utilisation()), "% of what its products reach.\n");
}

}  // namespace

std::string to_text(const PlanReport& report, const StepReport& step) {
  return str(memory_table(report, step), "\n", kept_table(report, step), "\n", time_table(step));
}

Json to_json(const PlanReport& report, const StepReport& step) {
  const TraceMemory& memory = step.trace.memory;
  const StepTime& time = step.time;
  Json kept = Json::object();
  for (std::size_t u = 0; u < report.plan.units.size(); ++u)
    if (memory.kept_by_unit[u] > 0) kept[report.plan.units[u].name] = memory.kept_by_unit[u];
  return {{"machine", step.settings.machine.name},
          {"num_nodes", step.num_nodes},
          {"passes", step.trace.passes},
          {"tokens", step.trace.tokens},
          {"images", step.trace.images},
          {"memory",
           {{"kept_bytes", step.kept()},
            {"kept_by_unit", kept},
            {"kept_outside_bytes", memory.kept_outside},
            {"peak_bytes", step.peak()},
            {"needed_bytes", step.needed()},
            {"gpu_bytes", step.settings.machine.memory.bytes},
            {"fits", step.fits()},
            {"host_bytes", step.host_bytes}}},
          {"time",
           {{"seconds", time.seconds},
            {"products", time.products},
            {"attention", time.attention},
            {"passes", time.passes},
            {"gaps", time.gaps},
            {"exposed", time.exposed},
            {"update", time.update_seconds},
            {"intra_link", time.intra_seconds},
            {"inter_link", time.inter_seconds}}},
          {"intra_bytes", time.intra_bytes},
          {"inter_bytes", time.inter_bytes},
          {"tflop", time.flops / 1e12},
          {"tokens_per_second", step.tokens_per_second()},
          {"utilisation", step.utilisation()}};
}

}  // namespace floe::plan
