// Two sets of parameters that train in turn, or one of them alone: what steps and switches take
// on the device.
#include <ATen/DeviceAccelerator.h>

#include <memory>
#include <vector>

#include "collective_tally.h"
#include "flamingo_job.h"
#include "floe/comm/world.h"
#include "floe/core/error.h"
#include "floe/nn/activations/host_store.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "h200_tasks.h"
#include "transformer_job.h"

namespace floe::bench {
namespace {

class PhasesJob {
 public:
  explicit PhasesJob(const Json& config)
      : config_(config),
        device_(device_from(config)),
        model_(std::make_shared<models::Transformer>(size_from(config.at("model")))) {
    shard::ShardOptions options;
    options.world = comm::World::fake(0, config.at("world"), device_);
    options.seed = config.at("seed");
    options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat};
    options.sets = sets_from(config);
    engine_ = shard::fully_shard(model_, {.units = config.at("units")}, options);
    optim::AdamWOptions adamw;
    adamw.decay.weight_decay = config.at("weight_decay");
    for (std::size_t set = 0; set < engine_->sets().size(); ++set)
      optimizers_.push_back(std::make_unique<optim::AdamW>(*engine_, adamw, set));
  }

  Json measure() {
    Json turns = Json::array();
    for (std::int64_t turn = 0; turn < config_.at("turns"); ++turn)
      turns.push_back(take_turn(static_cast<std::size_t>(turn) % engine_->sets().size()));
    std::int64_t elements = 0;
    for (const shard::FlatGroup* group : engine_->active_groups())
      elements += group->plan().layout.numel();
    return {{"turns", turns}, {"elements_of_a_set", elements}};
  }

 private:
  // The switch counts from an idle device until the first step after it is done: what it copies
  // behind that step's computation is seen only as far as it delays it.
  Json take_turn(std::size_t set) {
    Json told{{"set", engine_->sets()[set].name}, {"losses", Json::array()}};
    synchronize();
    CollectiveTally tally(*engine_);
    const std::int64_t before = diagnostics::device_memory(device_).current_bytes;
    diagnostics::reset_peak(device_);
    Clock clock;
    engine_->activate(set);
    const double host_seconds = clock.lap();
    told["switch"] = tally.take();
    told["switch"].update({{"host_seconds", host_seconds},
                           {"before_bytes", before},
                           {"peak_bytes", diagnostics::device_memory(device_).peak_bytes},
                           {"after_bytes", diagnostics::device_memory(device_).current_bytes}});
    diagnostics::reset_peak(device_);
    std::vector<double> seconds;
    for (std::int64_t step = 0; step < config_.at("steps_of_a_turn"); ++step) {
      told["losses"].push_back(train());
      synchronize();
      seconds.push_back(clock.lap());
    }
    told.update(tally.take(config_.at("steps_of_a_turn")));
    told.update({{"step_seconds", seconds},
                 {"peak_bytes", diagnostics::device_memory(device_).peak_bytes},
                 {"between_bytes", diagnostics::device_memory(device_).current_bytes},
                 {"stored_bytes", nn::stored_bytes()}});
    return told;
  }

  double train() {
    const at::Tensor ids = token_batch(config_, steps_++, 0).to(device_);
    const at::Tensor loss = models::next_token_loss(nn::call(*model_, ids), ids);
    loss.backward();
    const auto agreement = engine_->agree();
    require(agreement.finite, "a gradient is not finite");
    optimizers_[engine_->active_set()]->step(config_.at("lr"),
                                             optim::clip_factor(agreement.gradient_norm, 1.0));
    engine_->clear_gradients();
    return loss.item<double>();
  }

  void synchronize() const {
    if (!device_.is_cpu()) at::accelerator::synchronizeDevice(device_.index());
  }

  const Json& config_;
  c10::Device device_;
  std::shared_ptr<models::Transformer> model_;
  std::shared_ptr<shard::Engine> engine_;
  std::vector<std::unique_ptr<optim::AdamW>> optimizers_;
  std::int64_t steps_ = 0;
};

}  // namespace

Json measure_phases(const Json& config) {
  diagnostics::device_memory(device_from(config));  // counts from here on, on the CPU
  return PhasesJob(config).measure();
}

}  // namespace floe::bench
