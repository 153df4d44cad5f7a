// What the trainer costs beyond the model: the same steps by hand and by Trainer, in one process.
//
//   bench_train STEPS CONFIG... [key=value]     prints one JSON object
//
// By hand: pack, prepare, forward, backward, agree, clip, update; nothing is logged,
// saved or counted.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "floe/core/log.h"
#include "floe/packing/packing.h"
#include "floe/train/phases/phases.h"
#include "floe/train/setup/parallelize.h"
#include "floe/train/setup/run_setup.h"
#include "floe/train/step/precision.h"
#include "floe/train/trainer.h"

using namespace floe;
using Clock = std::chrono::steady_clock;

namespace {

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

std::vector<double> by_hand(const train::RunConfig& config,
                            const std::shared_ptr<comm::World>& world, std::int64_t steps) {
  const models::BuiltModel built = models::build_model(config.model, config.run.seed);
  const auto engine = train::parallelize(config, built, world);
  built.module->train();
  const train::Phases phases(config, *engine);
  data::Loader loader(config.data, train::loader_context(config, built, *world));
  models::InputOptions options;
  options.device = world->device();
  options.dtype = train::compute_dtype(config);
  options.num_sources = static_cast<std::int64_t>(data::num_sources());
  options.loss.weight = train::loss_weights(config.data);
  std::vector<double> times;
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto begin = Clock::now();
    const auto input = models::prepare(*built.model, packing::pack(loader.next()), options);
    const at::Tensor loss = std::get<0>(models::training_loss(*built.model, input));
    loss.backward();
    const shard::Agreement all = engine->agree();
    const auto limit = config.train.clip.norm;
    phases.optimizer().step(config.train.optimizer.lr,
                            limit ? optim::clip_factor(all.gradient_norm, *limit) : 1.0);
    engine->clear_gradients();
    times.push_back(microseconds_since(begin));
  }
  return times;
}

// The time from one record to the next: everything between two steps is in it.
std::vector<double> by_trainer(const config::Loaded<train::RunConfig>& loaded,
                               const std::shared_ptr<comm::World>& world) {
  train::RunSignals signals;
  train::Trainer(loaded, world, signals).run();
  std::ifstream lines(loaded.config.run.folder() + "/metrics.jsonl");
  std::vector<double> times;
  double before = 0;
  for (std::string line; std::getline(lines, line);) {
    const double now = nlohmann::json::parse(line).at("time");
    if (before > 0) times.push_back((now - before) * 1e6);
    before = now;
  }
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: bench_train STEPS CONFIG... [key=value]\n";
    return 2;
  }
  log::set_level(log::Level::warn);
  const std::int64_t steps = std::stoll(argv[1]);
  std::vector<std::string> words(argv + 2, argv + argc);
  words.push_back("train.steps=" + std::to_string(steps));
  const auto loaded = train::load_run_config(config::layers_from_arguments(words, ""));
  const auto world = train::join_world(loaded.config.dist);
  const double hand = median(by_hand(loaded.config, world, steps));
  const double trainer = median(by_trainer(loaded, world));
  std::cout << nlohmann::json{{"steps", steps},
                              {"by_hand_us", hand},
                              {"trainer_us", trainer},
                              {"overhead_us", trainer - hand}}
                   .dump()
            << "\n";
}
