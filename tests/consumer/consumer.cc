// Trains a torch::nn model that floe knows nothing about, sharded, and compares every parameter
// with the same training in plain torch (plain.h).
//
//   floe launch -n 2 --exec consumer train FOLDER 5      # five steps, then a checkpoint
//   floe launch -n 3 --exec consumer train FOLDER 12     # goes on from there, on three ranks
//   floe launch -n 2 --exec consumer phases FOLDER 5     # the same, two sets in turn
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "floe/engine.h"
#include "model.h"
#include "plain.h"

using namespace floe;

namespace {

constexpr double kLr = 1e-2, kMaxNorm = 0.5;
constexpr int64_t kWarmup = 2, kTotal = 12, kTurn = 3;

// Of every step and rank its own.
std::pair<at::Tensor, at::Tensor> batch_of(int64_t step, int rank) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 * step + rank + 1));
  const at::Tensor x = at::randn({4, kInputs}, generator);
  return {x, x.narrow(1, 0, kOutputs) * (rank + 1)};
}

// One word per unit: still a BlockImpl, with the same names of parameters.
using Block = nn::Hooked<BlockImpl>;
using Net = nn::Hooked<NetImpl<Block>>;

std::shared_ptr<Net> make_model() {
  at::manual_seed(0);  // torch's modules draw their own first values: on all ranks the same
  return std::make_shared<Net>();
}

optim::LrSchedule schedule() {
  return {.kind = optim::lr_schedule_from_name("cosine"),
          .warmup_steps = kWarmup,
          .total_steps = kTotal};
}

// How many ranks took part in each step, as text: what this program keeps beside the tensors.
std::string as_text(const std::vector<int>& worlds) { return join(worlds, " "); }
std::vector<int> from_text(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<int>(words), std::istream_iterator<int>()};
}

// One update; returns the mean loss over ranks.
double train_step(Net& model, shard::Engine& engine, optim::Optimizer& optimizer, int64_t step) {
  comm::World& world = engine.world();
  const auto [x, y] = batch_of(step, world.rank());
  const at::Tensor loss = at::mse_loss(model.forward(x.to(world.device())), y.to(world.device()));
  loss.backward();  // gathers, releases and reduces on its way
  const shard::Agreement all = engine.agree(/*locally_finite=*/true, {}, loss);
  if (all.finite)
    optimizer.step(kLr * schedule().factor(step), optim::clip_factor(all.gradient_norm, kMaxNorm));
  engine.clear_gradients();
  return all.sums[0] / world.size();
}

// Collective: compares every parameter with plain torch's. Throws when one differs, when something
// that is to train did not move, or when something that is frozen did.
void compare(shard::Engine& engine, const plain::Job& job) {
  const plain::Result expected = plain::train(job);
  double worst = 0;
  for (const auto& [name, after] : expected.after) {
    const at::Tensor ours = engine.full_parameter(name).to(at::kCPU);
    const at::Tensor& before = expected.before.at(name);
    const bool trains = std::any_of(job.sets.begin(), job.sets.end(), [&](const plain::Set& set) {
      return std::any_of(set.prefixes.begin(), set.prefixes.end(),
                         [&](const std::string& prefix) { return name.starts_with(prefix); });
    });
    const double moved = (ours - before).abs().max().item<double>();
    require(trains ? moved > 1e-3 : moved == 0, "'", name, "' moved by ", moved);
    worst = std::max(worst, (ours - after).abs().max().item<double>());
  }
  require(worst < 5e-6, "sharded and plain training differ by ", worst);
  if (engine.world().rank() == 0)
    std::printf("%d parameters agree with plain torch after %d steps, to %.1e\n",
                static_cast<int>(expected.after.size()), static_cast<int>(job.worlds.size()),
                worst);
}

plain::Job plain_job(std::vector<plain::Set> sets, std::vector<int> worlds) {
  return {.sets = std::move(sets),
          .worlds = std::move(worlds),
          .lr = kLr,
          .max_norm = kMaxNorm,
          .warmup_steps = kWarmup,
          .total_steps = kTotal,
          .batch = batch_of};
}

void log_resumed(const comm::World& world, const checkpoint::Resumed& resumed) {
  if (world.rank() == 0)
    std::printf("resumed step %d, saved by %d ranks\n", static_cast<int>(resumed.step),
                static_cast<int>(resumed.ranks.size()));
}

void train(const std::shared_ptr<comm::World>& world, const std::string& folder, int64_t until) {
  const auto model = make_model();
  shard::ShardOptions options;
  options.world = world;
  options.trainable = {{"blocks.2.*", "blocks.3.*", "head.*"}};  // the rest is frozen
  const auto engine = shard::fully_shard(model, {.units = {"Block"}}, options);
  optim::AdamW optimizer(*engine, {});

  checkpoint::Checkpoints checkpoints(*engine, {.folder = folder, .optimizers = {&optimizer}});
  std::vector<int> worlds;
  if (const auto resumed = checkpoints.resume()) {
    worlds = from_text(resumed->shared);
    require(std::ssize(worlds) == resumed->step, "the text of step ", resumed->step, " is lost");
    log_resumed(*world, *resumed);
  }
  for (auto step = std::ssize(worlds); step < until; ++step) {
    const double loss = train_step(*model, *engine, optimizer, step);
    worlds.push_back(world->size());
    if (world->rank() == 0) std::printf("step %d  loss %.5f\n", static_cast<int>(step), loss);
  }
  checkpoints.save(until, {.shared = as_text(worlds), .this_rank = str(world->rank())});
  checkpoints.wait();

  compare(*engine, plain_job({{.prefixes = {"blocks.2.", "blocks.3.", "head."},
                               .trains = [](int64_t) { return true; }}},
                             worlds));
}

// Which set trains in a step: three steps each, in turn.
std::size_t set_of(int64_t step) { return static_cast<std::size_t>(step / kTurn % 2); }

void train_in_phases(const std::shared_ptr<comm::World>& world, const std::string& folder,
                     int64_t until) {
  const auto model = make_model();
  shard::ShardOptions options;
  options.world = world;
  options.sets = {{.name = "blocks", .patterns = {"blocks.[23].*"}, .rest = shard::Rest::offload},
                  {.name = "head", .patterns = {"head.*"}}};
  const auto engine = shard::fully_shard(model, {.units = {"Block"}}, options);
  optim::AdamW blocks(*engine, {}, /*set=*/0), head(*engine, {}, /*set=*/1);
  const std::vector<optim::Optimizer*> optimizers{&blocks, &head};

  checkpoint::Checkpoints checkpoints(*engine, {.folder = folder, .optimizers = optimizers});
  std::vector<int> worlds;
  if (const auto resumed = checkpoints.resume()) {
    worlds = from_text(resumed->shared);
    require(engine->active_set() == set_of(resumed->step - 1), "another set is active");
    log_resumed(*world, *resumed);
  }
  for (auto step = std::ssize(worlds); step < until; ++step) {
    engine->activate(set_of(step));
    train_step(*model, *engine, *optimizers[set_of(step)], step);
    worlds.push_back(world->size());
  }
  checkpoints.save(until, {.shared = as_text(worlds)});
  checkpoints.wait();

  compare(
      *engine,
      plain_job({{.prefixes = {"blocks.2.", "blocks.3."},
                  .trains = [](int64_t step) { return set_of(step) == 0; }},
                 {.prefixes = {"head."}, .trains = [](int64_t step) { return set_of(step) == 1; }}},
                worlds));
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string mode = argc == 4 ? argv[1] : "";
  require<ConfigError>(mode == "train" || mode == "phases",
                       "usage: consumer train|phases FOLDER STEPS");
  const auto world = comm::World::join();  // floe launch, torchrun, srun, mpirun, or alone
  return comm::guarded(*world, [&] {
    (mode == "train" ? train : train_in_phases)(world, argv[2], std::stoll(argv[3]));
  });
} catch (const Error& error) {
  std::fprintf(stderr, "consumer: %s\n", error.what());
  return static_cast<int>(error.exit());
}
