// floe's side of bench/checkpoint.py: saves and loads of a model that trains as a whole.
//
//   bench_checkpoint folder=DIR rounds=3 dim=1024 layers=8 vocab=8192
#include <ATen/ATen.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "floe/checkpoint/checkpointer.h"
#include "floe/comm/world.h"
#include "floe/models/transformer.h"
#include "floe/optim/optimizers/adamw.h"

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace floe;
  std::map<std::string, std::string> given;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    given[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  const auto number = [&](const char* key) { return std::stoll(given.at(key)); };
  comm::WorldOptions options;
  options.backend = comm::Backend::gloo;
  options.device = c10::Device(c10::kCPU);
  options.rendezvous = comm::find_rendezvous({}, comm::process_environment());
  const auto world = comm::World::join(options);
  shard::ShardOptions sharding;
  sharding.world = world;
  const auto engine = shard::fully_shard(
      std::make_shared<models::Transformer>(models::TransformerSize{
          .vocab = number("vocab"), .dim = number("dim"), .layers = number("layers"), .heads = 8}),
      {.units = {"DecoderLayer"}}, sharding);
  optim::AdamW optimizer(*engine, {});
  for (std::size_t g = 0; g < engine->trainable_groups().size(); ++g)
    for (const auto& slice : optimizer.state_slices(g)) slice.values.uniform_();

  const auto timed = [&](const auto& work) {
    world->group()->barrier("before");
    const auto begin = Clock::now();
    work();
    world->group()->barrier("after");
    return since(begin);
  };
  for (std::int64_t round = 0; round < number("rounds"); ++round) {
    const std::string folder = given.at("folder");
    if (world->rank() == 0) std::filesystem::remove_all(folder);
    checkpoint::CheckpointerOptions saving;
    saving.run_folder = folder;
    saving.engine = engine.get();
    saving.optimizers = {{"", &optimizer}};
    nlohmann::json line;
    saving.config.async = false;
    {
      checkpoint::Checkpointer checkpoints(saving);
      checkpoints.resume("never");
      line["save_s"] = timed([&] { checkpoints.save(1, {}, {}); });
      line["load_s"] = timed([&] { checkpoints.resume("auto"); });
    }
    saving.config.async = true;
    {
      checkpoint::Checkpointer checkpoints(saving);
      checkpoints.resume("never");
      checkpoints.save(2, {}, {});  // makes the host buffer
      checkpoints.wait();
      line["pause_s"] = timed([&] { checkpoints.save(3, {}, {}); });
      checkpoints.wait();
    }
    if (world->rank() == 0) std::cout << line.dump() << std::endl;
  }
  return 0;
}
