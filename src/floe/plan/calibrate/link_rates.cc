#include "floe/plan/calibrate/link_rates.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <limits>
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

// Every rank of the group calls it with the same numbers. On the CPU, which others may use as well,
// the fastest round counts, of more and shorter ones: what is taken away is not the link's.
Took typical_round(comm::Group& group, c10::Device device, int rounds, int calls,
                   const std::function<void()>& call) {
  call();
  std::vector<double> seconds, processor;
  if (device.is_cpu()) {
    constexpr int kSplit = 4;
    rounds *= kSplit;
    calls = std::max(1, calls / kSplit);
  }
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
  if (device.is_cpu())
    return {*std::min_element(seconds.begin(), seconds.end()), median_of(processor)};
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
  pair.gather = typical_round(group, device, rounds, calls,
                              [&] { group.all_gather(whole, own, "calibrate").wait(); });
  pair.scatter = typical_round(group, device, rounds, calls, [&] {
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
  if (device.is_cpu()) {
    // What threads of a rank worked is measured best; it is spread over the cores that they had.
    const double took = large.gather.seconds + large.scatter.seconds;
    rates.cores = std::clamp((large.gather.processor + large.scatter.processor) / took, 0.3,
                             static_cast<double>(std::min(cores, 2)));
    if (ranks_of_node > cores) rates.cores = 1;  // they had to share
    large.gather.seconds = large.gather.processor / rates.cores;
    large.scatter.seconds = large.scatter.processor / rates.cores;
  }
  const double moved = static_cast<double>(bytes) * hops / group.size();
  const double latency = hops * rates.us * 1e-6;
  rates.gbs = moved / std::max(large.gather.seconds - latency, 0.2 * large.gather.seconds) / 1e9;
  const double sums = large.scatter.seconds - large.gather.seconds;
  rates.reduce_gbs = static_cast<double>(bytes) / std::max(sums, 0.02 * large.gather.seconds) / 1e9;
  return rates;
}

}  // namespace

Links measure_links(comm::World& world, int rounds) {
  Links links;
  links.ranks_per_node = world.size();
  if (world.size() < 2) return links;
  const int cores = available_cores();
  if (world.on_several_hosts()) {
    const std::vector<int> hosts = world.ranks_of_hosts();
    links.nodes = static_cast<int>(hosts.size());
    links.ranks_per_node = world.size() / links.nodes;
    for (const int ranks : hosts) links.uneven = links.uneven || ranks != links.ranks_per_node;
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
