#include "floe/shard/pass/agreement.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <vector>

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

// Of every bit and its place, as a number on the device; `weights` are odd.
at::Tensor checksum(const at::Tensor& values, const at::Tensor& weights) {
  const at::Tensor bytes = values.reshape({-1}).view(at::kByte);
  const std::int64_t whole = bytes.numel() / 8 * 8;
  at::Tensor sum = bytes.narrow(0, whole, bytes.numel() - whole).sum(at::kLong);
  const at::Tensor words = bytes.narrow(0, 0, whole).view(at::kLong);
  for (std::int64_t first = 0; first < words.numel(); first += weights.numel()) {
    const std::int64_t count = std::min(weights.numel(), words.numel() - first);
    sum = sum * 0x2545f491 +
          (words.narrow(0, first, count).to(weights.device()) * weights.narrow(0, 0, count))
              .sum()
              .to(sum.device());
  }
  return sum;
}

// "rank 0, rank 2"
std::string names_of(const std::vector<int>& ranks, const comm::World& world) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(world.name_of(rank));
  return join(names, ", ");
}

}  // namespace

void compare_copies(const std::vector<HeldCopy>& copies, comm::World& world) {
  if (copies.empty() || world.size() == 1 || world.backend() == comm::Backend::fake) return;
  constexpr std::int64_t kAtOnce = 1 << 20;
  const at::Tensor weights =
      at::arange(kAtOnce, at::TensorOptions().dtype(at::kLong).device(world.device()))
          .mul_(0x9e3779b1 * 2)
          .add_(1);
  std::vector<at::Tensor> mine;
  for (const HeldCopy& copy : copies) {
    mine.push_back(at::scalar_tensor(copy.slice, weights.options()));
    mine.push_back(checksum(copy.values, weights).to(world.device()));
  }
  const at::Tensor sums = at::stack(mine);
  const at::Tensor all = at::empty({world.size() * sums.numel()}, sums.options());
  world.group()->all_gather(all, sums, "compare copies").wait();
  const at::Tensor host = world.read(all).view({world.size(), -1, 2});
  const auto numbers = host.accessor<std::int64_t, 3>();

  for (std::size_t i = 0; i < copies.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    std::map<std::int64_t, std::map<std::int64_t, std::vector<int>>> ranks_by_sum;  // by slice
    for (int rank = 0; rank < world.size(); ++rank)
      ranks_by_sum[numbers[rank][at][0]][numbers[rank][at][1]].push_back(rank);
    for (const auto& [slice, holders] : ranks_by_sum) {
      if (holders.size() == 1) continue;
      std::vector<std::vector<int>> kinds;
      for (const auto& [sum, ranks] : holders) kinds.push_back(ranks);
      std::sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
        return a.size() != b.size() ? a.size() > b.size() : a < b;
      });
      std::vector<int> others;
      for (std::size_t k = 1; k < kinds.size(); ++k)
        others.insert(others.end(), kinds[k].begin(), kinds[k].end());
      throw ShardError(str(
          "the copies of '", copies[i].name, "' (slice ", slice,
          ") are not the same any more: ", names_of(others, world),
          others.size() == 1 ? " has" : " have", " other values than ", names_of(kinds[0], world),
          "; something was computed or received wrongly there, and nothing of it is saved: start "
          "again from the newest checkpoint, and test the memory and the network of these hosts"));
    }
  }
}

std::vector<std::string> agreed_lines(const ShardPlan& plan, const ShardOptions& options) {
  std::vector<std::string> lines = plan.lines();
  const auto& mixed = options.mixed_precision;
  lines.push_back(str("seed ", options.seed));
  lines.push_back(str("prefetch ", options.prefetch));
  lines.push_back(str("passes per update ", options.passes_per_update, ", gradients add up ",
                      name_of(plan.accumulates())));
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
  const auto difference_from = [&](const std::string& other) -> std::string {
    if (other == std::to_string(world.rank())) return "";
    const auto text = world.lookup(prefix + other, kReportWait);
    return text ? first_difference(lines, split_lines(*text), world.rank(), std::stoi(other)) : "";
  };
  // Rank 0 finds one that differs, so that the others compare with that one, or with rank 0: a
  // thousand ranks that read a thousand plans would take hours.
  std::string other = "0", difference;
  if (world.rank() == 0) {
    for (int rank = 1; rank < world.size() && difference.empty(); ++rank)
      difference = difference_from(other = std::to_string(rank));
    world.publish(prefix + "other", other);
  } else {
    other = world.lookup(prefix + "other", world.timeout()).value_or(other);
    difference = difference_from(other);
    if (difference.empty()) difference = difference_from("0");
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
