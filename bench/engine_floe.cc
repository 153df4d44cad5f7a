// One rank of bench/engine.py: trains models::Transformer with floe and prints what it took as one
// line of JSON.
//
//   bench_engine CONFIG.json                         as a rank (environment of a launcher)
//   bench_engine CONFIG.json --weights OUT.safetensors   writes the initial weights and ends
//
// CONFIG.json says the same to every system that is compared; bench/engine.py writes it.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/models/transformer.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "json_program.h"
#include "transformer_job.h"

namespace floe {
namespace {

using bench::Clock, bench::cpu_seconds, bench::Json, bench::size_from, bench::strategy_from,
    bench::token_batch;

shard::ShardOptions options_from(const Json& json) {
  shard::ShardOptions options;
  options.world = comm::World::join();
  options.seed = json.at("seed");
  options.trainable = json.at("trainable").get<std::vector<std::string>>();
  options.strategy = strategy_from(json.at("strategy"));
  const std::string residency = json.at("residency");
  require<ConfigError>(residency == "sharded" || residency == "resident", "residency '", residency,
                       "' is not one of sharded, resident");
  if (residency == "resident") options.frozen.residency = shard::Residency::resident;
  return options;
}

void write_weights(const Json& json, const std::string& path) {
  models::Transformer model(size_from(json.at("model")));
  nn::materialize(model, json.at("seed"));
  SafetensorsWriter writer(path, {{"format", "pt"}});
  const auto parameters = nn::named_parameters(model);
  for (const auto& parameter : parameters)
    writer.declare(parameter.name, DType::f32, parameter.tensor.sizes().vec());
  for (const auto& parameter : parameters)
    writer.write(parameter.name, {static_cast<const std::byte*>(parameter.tensor.const_data_ptr()),
                                  parameter.tensor.nbytes()});
  writer.finish();
}

// Sums what the engine tells.
class Tally final : public shard::Observer {
 public:
  void on(const shard::Event& event) override {
    using Kind = shard::Event::Kind;
    switch (event.kind) {
      case Kind::gather:
      case Kind::prefetch:
        gathers += 1;
        gathered_bytes += event.bytes;
        break;
      case Kind::reduce:
        reduces += 1;
        reduced_bytes += event.bytes;
        break;
      case Kind::wait: waited_seconds += event.seconds; break;
      default: break;
    }
  }

  std::int64_t gathers = 0, gathered_bytes = 0, reduces = 0, reduced_bytes = 0;
  double waited_seconds = 0;
};

// With "trace": true, what the engine does in the last step, and the tensor bytes at that moment
// and at most since the line before.
class Trace final : public shard::Observer {
 public:
  explicit Trace(diagnostics::MemoryCounter& memory) : memory_(memory) {}
  void on(const shard::Event& event) override {
    log::info(shard::name_of(event.kind), " ", event.unit, " / ", event.group, ": ",
              memory_.current_bytes() / kKiB, " KiB, at most ", memory_.peak_bytes() / kKiB,
              " KiB, waited ", event.seconds * 1e3, " ms");
    memory_.reset_peak();
  }

 private:
  diagnostics::MemoryCounter& memory_;
};

Json train(const Json& json) {
  auto& memory = diagnostics::MemoryCounter::install();
  const shard::ShardOptions options = options_from(json);
  auto model = std::make_shared<models::Transformer>(size_from(json.at("model")));
  const shard::Policy policy{.units = json.at("units").get<std::vector<std::string>>()};
  const auto engine = shard::fully_shard(model, policy, options);
  optim::AdamWOptions adamw;
  adamw.decay.weight_decay = json.at("weight_decay");
  optim::AdamW optimizer(*engine, adamw);

  Tally tally;
  engine->add_observer(&tally);
  Trace trace(memory);
  const double lr = json.at("lr");
  const std::int64_t warmup = json.at("warmup"), steps = json.at("steps"),
                     batches = json.at("batches");
  std::vector<double> losses, step_seconds, cpu, forward_seconds, backward_seconds, update_seconds;
  std::int64_t peak_bytes = 0, gradient_bytes = 0;
  for (std::int64_t step = 0; step < warmup + steps; ++step) {
    if (step == warmup) tally = Tally();
    const at::Tensor ids = token_batch(json, step % batches, options.world->rank());
    memory.reset_peak();
    if (step + 1 == warmup + steps && json.value("trace", false)) engine->add_observer(&trace);
    const double cpu_before = cpu_seconds();
    Clock step_clock, clock;
    at::Tensor loss = models::next_token_loss(nn::call(*model, ids), ids);
    const double forward = clock.lap();
    loss.backward();
    const double backward = clock.lap();
    gradient_bytes = std::max(gradient_bytes, engine->memory().gradient_slices);
    const auto agreement = engine->agree();
    require(agreement.finite, "a gradient is not finite");
    optimizer.step(lr);
    engine->clear_gradients();
    const double update = clock.lap();
    const double whole = step_clock.lap();
    const double cpu_after = cpu_seconds();
    losses.push_back(loss.item<double>());
    if (step < warmup) continue;
    peak_bytes = std::max(peak_bytes, memory.peak_bytes());
    step_seconds.push_back(whole);
    cpu.push_back(cpu_after - cpu_before);
    forward_seconds.push_back(forward);
    backward_seconds.push_back(backward);
    update_seconds.push_back(update);
  }
  engine->remove_observer(&tally);
  engine->remove_observer(&trace);
  options.world->group()->barrier("the end of the benchmark");
  return {{"rank", options.world->rank()},
          {"losses", losses},
          {"step_seconds", step_seconds},
          {"cpu_seconds", cpu},
          {"forward_seconds", forward_seconds},
          {"backward_seconds", backward_seconds},
          {"update_seconds", update_seconds},
          {"waited_seconds", tally.waited_seconds / static_cast<double>(steps)},
          {"peak_bytes", peak_bytes},
          {"between_bytes", memory.current_bytes()},
          {"gradient_bytes", gradient_bytes},
          {"optimizer_bytes", optimizer.state_bytes()},
          {"gathers", tally.gathers / steps},
          {"gathered_bytes", tally.gathered_bytes / steps},
          {"reduces", tally.reduces / steps},
          {"reduced_bytes", tally.reduced_bytes / steps}};
}

int run(const std::vector<std::string>& arguments) {
  const bool only_weights = arguments.size() == 3 && arguments[1] == "--weights";
  require<ConfigError>(arguments.size() == 1 || only_weights,
                       "usage: bench_engine CONFIG.json [--weights OUT.safetensors]");
  const Json json = bench::read_config(arguments[0]);
  if (only_weights)
    write_weights(json, arguments[2]);
  else
    std::cout << train(json).dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace floe

int main(int argc, char** argv) { return floe::bench::run_program(argc, argv, floe::run); }
