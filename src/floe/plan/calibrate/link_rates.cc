#include "floe/plan/calibrate/link_rates.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "floe/core/bytes.h"
#include "floe/core/stopwatch.h"
#include "floe/plan/calibrate/timing.h"

namespace floe::plan {
namespace {

constexpr int kLargeCalls = 4, kSmallCalls = 50;
constexpr std::int64_t kLargeOnCpu = 16 * kMiB, kLargeOnGpu = 256 * kMiB, kSmall = 4 * kKiB;

// Of all threads of this process.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Took {
  double seconds = 0, processor = 0;  // of one call
};

// Every rank of the group calls it with the same numbers.
Took median_round(comm::Group& group, c10::Device device, int rounds, int calls,
                  const std::function<void()>& call) {
  call();
  std::vector<double> seconds, processor;
  for (int round = 0; round < rounds; ++round) {
    synchronize_device(device);
    group.barrier("calibrate");
    const Stopwatch watch;
    const double before = processor_seconds();
    for (int i = 0; i < calls; ++i) call();
    synchronize_device(device);
    seconds.push_back(watch.seconds() / calls);
    processor.push_back((processor_seconds() - before) / calls);
  }
  return {median_of(seconds), median_of(processor)};
}

struct Pair {
  Took gather, scatter;
};

Pair of_size(comm::Group& group, c10::Device device, int rounds, int calls, std::int64_t bytes) {
  const std::int64_t part = std::max<std::int64_t>(1, bytes / 4 / group.size());
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor whole = at::zeros({part * group.size()}, options),
                   own = at::zeros({part}, options);
  Pair pair;
  pair.gather = median_round(group, device, rounds, calls,
                             [&] { group.all_gather(whole, own, "calibrate").wait(); });
  pair.scatter = median_round(group, device, rounds, calls, [&] {
    group.reduce_scatter(own, whole, comm::Reduce::average, "calibrate").wait();
  });
  return pair;
}

LinkRates measure_group(comm::Group& group, c10::Device device, int rounds, int cores,
                        int ranks_of_node) {
  const std::int64_t bytes = device.is_cpu() ? kLargeOnCpu : kLargeOnGpu;
  Pair large = of_size(group, device, rounds, kLargeCalls, bytes);
  const Pair small = of_size(group, device, rounds, kSmallCalls, kSmall);
  LinkRates rates;
  rates.ranks = group.size();
  const int hops = group.size() - 1;
  rates.us = 1e6 * small.gather.seconds / hops;
  rates.cores = std::clamp((large.gather.processor + large.scatter.processor) /
                               (large.gather.seconds + large.scatter.seconds),
                           0.05, static_cast<double>(cores));
  // More ranks than cores: what they took is what the cores made of it, and one core for each would
  // take as long as it was busy.
  if (device.is_cpu() && rates.cores * ranks_of_node > 0.9 * cores && ranks_of_node > cores) {
    large.gather.seconds = large.gather.processor;
    large.scatter.seconds = large.scatter.processor;
    rates.cores = 1;
  }
  const double moved = static_cast<double>(bytes) * hops / group.size();
  const double latency = hops * rates.us * 1e-6;
  rates.gbs = moved / std::max(large.gather.seconds - latency, 0.2 * large.gather.seconds) / 1e9;
  const double sums = large.scatter.seconds - large.gather.seconds;
  rates.reduce_gbs = static_cast<double>(bytes) / std::max(sums, 0.02 * large.gather.seconds) / 1e9;
  return rates;
}

// How many ranks each host has.
std::map<std::string, int> ranks_by_host(const comm::World& world) {
  std::map<std::string, int> hosts;
  for (const std::string& line : world.placement()) {  // "rank 4: h1 (10.0.0.7) cuda:0"
    const auto begin = std::min(line.find(": "), line.size() - 2) + 2;
    hosts[line.substr(begin, line.find(' ', begin) - begin)] += 1;
  }
  return hosts;
}

}  // namespace

Links measure_links(comm::World& world, int rounds) {
  Links links;
  links.ranks_per_node = world.size();
  if (world.size() < 2) return links;
  const int cores = available_cores();
  if (world.on_several_hosts()) {
    const auto hosts = ranks_by_host(world);
    links.nodes = static_cast<int>(hosts.size());
    links.ranks_per_node = world.size() / links.nodes;
    for (const auto& [host, ranks] : hosts)
      links.uneven = links.uneven || ranks != links.ranks_per_node;
    if (links.uneven) return links;
  }
  const comm::Mesh& mesh = world.mesh(links.ranks_per_node);
  if (mesh.shard->size() > 1)
    links.inside = measure_group(*mesh.shard, world.device(), rounds, cores, links.ranks_per_node);
  if (links.nodes > 1 && mesh.replicate->size() > 1)
    links.between =
        measure_group(*mesh.replicate, world.device(), rounds, cores, links.ranks_per_node);
  return links;
}

}  // namespace floe::plan
