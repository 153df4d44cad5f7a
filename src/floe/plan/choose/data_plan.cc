#include "floe/plan/choose/data_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/str.h"
#include "floe/core/table.h"

namespace floe::plan {
namespace {

// The passes of one batch, rehearsed.
struct PlannedBatch {
  BatchRow row;
  BatchParts neediest;  // of its passes
};

void add_counts(const BatchParts& parts, BatchRow& row) {
  for (const BatchPart& part : parts) {
    const auto sequences = static_cast<double>(part.sequences);
    row.sequences += sequences;
    row.tokens += sequences * static_cast<double>(part.tokens);
    row.images += sequences * static_cast<double>(part.images);
    row.labels += sequences * static_cast<double>(part.labels);
  }
}

// An update has every pass as often as gradients are accumulated; agreement and update come once.
PlannedBatch plan_batch(const PlanReport& report, const Machine& machine, const Passes& passes) {
  PlannedBatch planned;
  BatchRow& row = planned.row;
  const double share = 1 / static_cast<double>(passes.size());
  for (const BatchParts& parts : passes) {
    const StepReport step = plan_step(report, {machine, parts});
    add_counts(parts, row);
    row.seconds += share * step.time.seconds;
    row.exposed += share * step.time.exposed;
    const auto needed = static_cast<double>(step.needed());
    if (needed <= row.needed) continue;
    row.needed = needed;
    row.kept = static_cast<double>(step.kept());
    row.peak = static_cast<double>(step.peak());
    row.host = static_cast<double>(step.host_bytes);
    planned.neediest = parts;
  }
  return planned;
}

BatchRow mean_of(const std::vector<BatchRow>& rows) {
  BatchRow mean;
  for (double BatchRow::*value :
       {&BatchRow::sequences, &BatchRow::tokens, &BatchRow::images, &BatchRow::labels,
        &BatchRow::kept, &BatchRow::peak, &BatchRow::needed, &BatchRow::host, &BatchRow::seconds,
        &BatchRow::exposed}) {
    for (const BatchRow& row : rows) mean.*value += row.*value;
    mean.*value /= static_cast<double>(rows.size());
  }
  return mean;
}

std::string whole(double number) { return str(std::llround(number)); }
std::string bytes_of(double number) { return format_bytes(std::llround(number)); }

std::string milliseconds_of(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 0.1 ? "%.1f ms" : "%.0f ms", 1e3 * seconds);
  return text;
}

}  // namespace

double DataPlan::tokens_per_second(const BatchRow& row) const {
  return row.seconds > 0 ? row.tokens * accumulation * world_size / row.seconds : 0;
}

DataPlan plan_data(const PlanReport& report, const Machine& machine, const DataSample& sample) {
  require<DataError>(!sample.batches.empty(), "the data has no batch to plan");
  DataPlan plan;
  plan.machine = machine;
  plan.world_size = report.subject.world_size;
  plan.counts = sample.counts;
  std::vector<BatchParts> neediest;
  std::size_t most_passes = 1;
  for (const Passes& passes : sample.batches) {
    PlannedBatch planned = plan_batch(report, machine, passes);
    planned.row.batch = static_cast<std::int64_t>(plan.rows.size());
    plan.rows.push_back(planned.row);
    neediest.push_back(std::move(planned.neediest));
    most_passes = std::max(most_passes, passes.size());
  }
  plan.accumulation = std::max(1, report.subject.passes_per_update / static_cast<int>(most_passes));
  plan.mean = mean_of(plan.rows);
  std::vector<std::size_t> order(plan.rows.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return plan.rows[a].needed < plan.rows[b].needed;
  });
  const auto count = static_cast<double>(order.size());
  const auto of_p99 = static_cast<std::size_t>(std::ceil(0.99 * count)) - 1;
  plan.p99 = plan.rows[order[of_p99]];
  plan.worst = plan.rows[order.back()];
  plan.largest = neediest[order.back()];
  const auto nearest =
      std::min_element(plan.rows.begin(), plan.rows.end(), [&](const auto& a, const auto& b) {
        return std::abs(a.seconds - plan.mean.seconds) < std::abs(b.seconds - plan.mean.seconds);
      });
  plan.typical = neediest[static_cast<std::size_t>(nearest->batch)];
  return plan;
}

std::string to_text(const DataPlan& plan) {
  std::string out =
      str("Batches of rank ", plan.rank, ", the first ", plan.rows.size(), " of its data:\n");
  for (const auto& [source, counts] : plan.counts)
    out += str("  ", source, ": ", counts.text(), "\n");
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::right,
               Align::right, Align::right, Align::right},
              0);
  table.row({"", "batch", "sequences", "tokens", "images", "kept", "needed", "an update",
             "tokens/s of a GPU"});
  const auto add = [&](const char* name, const BatchRow& row) {
    table.row({name, row.batch < 0 ? "-" : str(row.batch), whole(row.sequences), whole(row.tokens),
               whole(row.images), bytes_of(row.kept), bytes_of(row.needed),
               milliseconds_of(row.seconds), whole(plan.tokens_per_second(row) / plan.world_size)});
  };
  add("mean", plan.mean);
  add("99th percentile", plan.p99);
  add("worst", plan.worst);
  out += "\n" + table.text();
  const std::int64_t memory = plan.machine.memory.bytes;
  if (plan.fits())
    return str(out, "All of them fit into the ", format_bytes(memory), " of a ", plan.machine.name,
               ".\n");
  const auto too_large = std::count_if(plan.rows.begin(), plan.rows.end(), [&](const auto& row) {
    return row.needed > static_cast<double>(memory);
  });
  return str(out, too_large, " of ", plan.rows.size(), " do not fit into the ",
             format_bytes(memory), " of a ", plan.machine.name,
             "; --best looks for a strategy with which they do.\n");
}

nlohmann::ordered_json to_json(const DataPlan& plan) {
  using Json = nlohmann::ordered_json;
  const auto row_json = [&](const BatchRow& row) {
    Json json;
    json["batch"] = row.batch < 0 ? Json(nullptr) : Json(row.batch);
    json["sequences"] = row.sequences;
    json["tokens"] = row.tokens;
    json["images"] = row.images;
    json["labels"] = row.labels;
    json["kept_bytes"] = row.kept;
    json["peak_bytes"] = row.peak;
    json["needed_bytes"] = row.needed;
    json["host_bytes"] = row.host;
    json["fits"] = row.needed <= static_cast<double>(plan.machine.memory.bytes);
    json["seconds"] = row.seconds;
    json["exposed"] = row.exposed;
    json["tokens_per_second"] = plan.tokens_per_second(row);
    return json;
  };
  Json sources = Json::object();
  for (const auto& [source, counts] : plan.counts) {
    Json dropped = Json::object();
    for (const auto& [reason, count] : counts.dropped) dropped[reason] = count;
    sources[source] = {{"samples", counts.samples},
                       {"used", counts.kept},
                       {"dropped", dropped},
                       {"shards", counts.shards},
                       {"bad_shards", counts.bad_shards}};
  }
  return {{"machine", plan.machine.name}, {"rank", plan.rank},
          {"batches", plan.rows.size()},  {"gpu_bytes", plan.machine.memory.bytes},
          {"sources", sources},           {"mean", row_json(plan.mean)},
          {"p99", row_json(plan.p99)},    {"worst", row_json(plan.worst)}};
}

}  // namespace floe::plan
