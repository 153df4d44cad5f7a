// One rank of bench/phases.py: floe trains two parameter sets in turn, or one of them alone, and
// prints what every step and every switch took as one line of JSON.
//
//   bench_phases CONFIG.json        as a rank (environment of a launcher)
//
// CONFIG.json says the same to every system that is compared; bench/phases.py writes it.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/nn/activations/host_store.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/engine.h"
#include "json_program.h"
#include "transformer_job.h"

namespace floe {
namespace {

using bench::Clock, bench::cpu_seconds, bench::Json, bench::sets_from, bench::size_from,
    bench::strategy_from, bench::token_batch;

// Bytes of every collective since the last take: gathered parameters, reduced gradients, and the
// small agreement of a step.
class Tally final : public shard::Observer {
 public:
  void on(const shard::Event& event) override {
    using Kind = shard::Event::Kind;
    if (event.kind == Kind::gather || event.kind == Kind::prefetch) gathered_ += event.bytes;
    if (event.kind == Kind::reduce || event.kind == Kind::replicate) reduced_ += event.bytes;
    if (event.kind == Kind::agree) agreed_ += event.bytes;
  }
  Json take() {
    Json taken = {
        {"gathered_bytes", gathered_}, {"reduced_bytes", reduced_}, {"agreed_bytes", agreed_}};
    gathered_ = reduced_ = agreed_ = 0;
    return taken;
  }

 private:
  std::int64_t gathered_ = 0, reduced_ = 0, agreed_ = 0;
};

class Job {
 public:
  explicit Job(const Json& json)
      : json_(json),
        world_(comm::World::join()),
        model_(std::make_shared<models::Transformer>(size_from(json.at("model")))) {
    shard::ShardOptions options;
    options.world = world_;
    options.seed = json.at("seed");
    options.strategy = strategy_from(json.at("strategy"));
    options.sets = sets_from(json);
    engine_ = shard::fully_shard(model_, {.units = json.at("units")}, options);
    optim::AdamWOptions adamw;
    adamw.decay.weight_decay = json.at("weight_decay");
    for (std::size_t set = 0; set < engine_->sets().size(); ++set)
      optimizers_.push_back(std::make_unique<optim::AdamW>(*engine_, adamw, set));
    engine_->add_observer(&tally_);
  }
  ~Job() { engine_->remove_observer(&tally_); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Json run() {
    Json steps = Json::array(), switches = Json::array();
    const std::int64_t every = json_.at("switch_every"), count = json_.at("steps");
    for (std::int64_t step = 0; step < count; ++step) {
      const auto set = static_cast<std::size_t>(step / every) % engine_->sets().size();
      if (set != engine_->active_set()) switches.push_back(switch_to(set));
      steps.push_back(train(step));
    }
    world_->group()->barrier("the end of the benchmark");
    return {{"rank", world_->rank()}, {"steps", steps}, {"switches", switches}};
  }

 private:
  Json switch_to(std::size_t set) {
    tally_.take();
    const std::int64_t before = memory_.current_bytes();
    memory_.reset_peak();
    Clock clock;
    engine_->activate(set);
    const double seconds = clock.lap();
    Json told = tally_.take();
    told.update({{"to", engine_->sets()[set].name},
                 {"seconds", seconds},
                 {"before_bytes", before},
                 {"peak_bytes", memory_.peak_bytes()},
                 {"after_bytes", memory_.current_bytes()}});
    return told;
  }

  Json train(std::int64_t step) {
    const at::Tensor ids =
        token_batch(json_, step % json_.at("batches").get<std::int64_t>(), world_->rank());
    tally_.take();
    memory_.reset_peak();
    const double cpu_before = cpu_seconds();
    Clock clock;
    const double loss = forward_backward(ids);
    require(engine_->agree().finite, "a gradient is not finite");
    optimizers_[engine_->active_set()]->step(json_.at("lr"));
    engine_->clear_gradients();
    const double seconds = clock.lap(), cpu = cpu_seconds() - cpu_before;
    Json told = tally_.take();
    told.update({{"set", engine_->sets()[engine_->active_set()].name},
                 {"loss", loss},
                 {"seconds", seconds},
                 {"cpu_seconds", cpu},
                 {"peak_bytes", memory_.peak_bytes()},
                 {"between_bytes", memory_.current_bytes()},
                 {"stored_bytes", nn::stored_bytes()}});
    return told;
  }

  double forward_backward(const at::Tensor& ids) {
    const at::Tensor loss = models::next_token_loss(nn::call(*model_, ids), ids);
    loss.backward();
    return loss.item<double>();
  }

  diagnostics::MemoryCounter& memory_ = diagnostics::MemoryCounter::install();
  const Json& json_;
  std::shared_ptr<comm::World> world_;
  std::shared_ptr<models::Transformer> model_;
  std::shared_ptr<shard::Engine> engine_;
  std::vector<std::unique_ptr<optim::AdamW>> optimizers_;
  Tally tally_;
};

int run(const std::vector<std::string>& arguments) {
  require<ConfigError>(arguments.size() == 1, "usage: bench_phases CONFIG.json");
  const Json json = bench::read_config(arguments[0]);
  std::cout << Job(json).run().dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace floe

int main(int argc, char** argv) { return floe::bench::run_program(argc, argv, floe::run); }
