#include "floe/shard/pass/agreement.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "floe/batch/packed_batch.h"
#include "floe/core/error.h"
#include "floe/io/tensors/tensor_source.h"

namespace floe::shard {
namespace {

using namespace std::chrono_literals;
constexpr auto kReportWait = 10s;

std::vector<double> sum_over_ranks(const std::vector<double>& values, comm::World& world,
                                   const std::string& label, const OnDevice& more = {}) {
  at::Tensor payload = to_device(at::tensor(values, at::kDouble), world.device());
  if (more.summed.defined()) payload = at::cat({payload, more.summed});
  world.group()->all_reduce(payload, comm::Reduce::sum, label).wait();
  const at::Tensor host = world.read(more.own.defined() ? at::cat({payload, more.own}) : payload);
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      lines.push_back(line);
      line.clear();
    } else {
      line += c;
    }
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

// New keys in the store for every report, so that none reads what an earlier one left.
std::string next_prefix() {
  static std::atomic<int> count{0};
  return str("report/", count.fetch_add(1), "/");
}

// "" when they are the same.
std::string first_difference(const std::vector<std::string>& mine,
                             const std::vector<std::string>& theirs, int my_rank, int their_rank) {
  for (std::size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
    const std::string a = i < mine.size() ? mine[i] : "nothing more";
    const std::string b = i < theirs.size() ? theirs[i] : "nothing more";
    if (a != b) return str("rank ", my_rank, " has ", a, ", rank ", their_rank, " has ", b);
  }
  return "";
}

}  // namespace

std::vector<std::string> agreed_lines(const ShardPlan& plan, const ShardOptions& options) {
  std::vector<std::string> lines = plan.lines();
  const auto& mixed = options.mixed_precision;
  lines.push_back(str("seed ", options.seed));
  lines.push_back(str("prefetch ", options.prefetch));
  lines.push_back(str("cpu_offload ", options.cpu_offload));
  lines.push_back(str("watch_operators ", options.watch_operators));
  lines.push_back(str("autocast ", options.autocast ? c10::toString(*options.autocast) : "off"));
  lines.push_back(str("cast_inputs ", mixed.cast_inputs));
  lines.push_back(
      str("buffers in ", mixed.buffer ? c10::toString(*mixed.buffer) : "their own dtype"));
  for (const PlannedCheckpoint& checkpoint : plan.checkpointed)
    lines.push_back(str("activation checkpointing of '", checkpoint.name, "'"));
  if (!plan.checkpointed.empty())
    lines.push_back(str("kept of checkpointed modules: inputs",
                        options.kept_activations.products ? " and products" : "",
                        options.kept_activations.in_host ? " in host memory" : ""));
  if (options.source)
    for (const auto& name : options.source->names())
      lines.push_back(str("'", name, "' comes from a file"));
  return lines;
}

void compare_plans(const std::vector<std::string>& lines, comm::World& world) {
  if (world.backend() == comm::Backend::fake) return;
  CollectiveHash digest;
  Hash64 hash;
  for (const auto& line : lines) hash.add(line);
  const std::string name = "plan";
  digest.add("plan", hash.value(), name, 0);
  const auto words = digest.words();
  const auto sums = sum_over_ranks({words.begin(), words.end()}, world, "compare plans");
  if (CollectiveHash::agrees(sums.data(), world.size())) return;

  const std::string prefix = next_prefix();
  world.publish(str(prefix, world.rank()), join(lines, "\n"));
  std::string difference;
  for (int other = 0; other < world.size() && difference.empty(); ++other) {
    if (other == world.rank()) continue;
    if (const auto text = world.lookup(str(prefix, other), kReportWait))
      difference = first_difference(lines, split_lines(*text), world.rank(), other);
  }
  if (difference.empty()) difference = "no rank that differs has answered";
  // Nobody leaves before everybody has read: rank 0 may hold the store.
  world.group()->barrier("plans compared");
  throw ConfigError(str("the ranks do not have the same plan: ", difference,
                        "; start all ranks with the same model and configuration"));
}

std::vector<double> sum_and_compare(const std::vector<double>& values, const CollectiveHash& issued,
                                    comm::World& world, const OnDevice& more) {
  const auto words = issued.words();
  std::vector<double> mine(words.begin(), words.end());
  mine.insert(mine.end(), values.begin(), values.end());
  const auto sums = sum_over_ranks(mine, world, "agree", more);
  if (world.backend() == comm::Backend::fake || CollectiveHash::agrees(sums.data(), world.size()))
    return {sums.begin() + CollectiveHash::kWords, sums.end()};

  const std::string prefix = next_prefix();
  world.publish(str(prefix, world.rank()), issued.recent());
  std::string reports;
  for (int rank = 0; rank < world.size(); ++rank)
    if (const auto text = world.lookup(str(prefix, rank), kReportWait))
      reports += str("; rank ", rank, " issued ... ", *text);
  world.group()->barrier("collectives compared");
  throw ShardError(str(
      "the ranks went different ways through the model, so nothing was updated: "
      "every rank must run the same units in the same order (look for branches that depend on a "
      "rank's data, and for handles to parameters kept on one rank only)",
      reports));
}

}  // namespace floe::shard
