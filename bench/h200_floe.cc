// Steps of OpenFlamingo's training, or of adapters': what they take in time and memory.
#include <ATen/DeviceAccelerator.h>

#include <chrono>
#include <memory>
#include <vector>

#include "collective_tally.h"
#include "flamingo_job.h"
#include "floe/core/error.h"
#include "floe/models/model_input.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/observe/diagnostics/timeline.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/train/step/step_graphs.h"
#include "h200_tasks.h"
#include "kernel_events.h"

namespace floe::bench {
namespace {

class HostClock {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void synchronize(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

class StepJob {
 public:
  explicit StepJob(const Json& config)
      : config_(config),
        device_(device_from(config)),
        stream_(config.value("graphs", false) ? train::computing_stream(device_) : nullptr),
        model_(language_model(config.at("model"))) {
    engine_ = shard::fully_shard({model_, &model_->module()}, units_of(config.at("model")),
                                 flamingo_sharding(config));
    if (config.value("graphs", false))
      graphs_ =
          std::make_unique<train::StepGraphs>(*model_, *engine_, train::StepGraphs::Options());
    optimizer_ = std::make_unique<optim::AdamW>(
        *engine_, optim::AdamWOptions{.decay = {.weight_decay = 0.1}});
    batch_ = flamingo_batch(config, 0);
    input_options_ = flamingo_input_options(config);
    input_ = models::prepare(*model_, batch_, input_options_);
    synchronize(device_);
  }

  Json measure() {
    const HostClock clock;
    for (std::int64_t i = 0; i < config_.at("warmup"); ++i) step();
    while (graphs_ && graphs_->counts().replayed == 0) step();
    times_ = Json::object();
    const double warmup_ms = clock.milliseconds();
    const std::int64_t steps = config_.at("steps");
    CollectiveTally tally(*engine_);
    const std::int64_t between = diagnostics::device_memory(device_).current_bytes;
    diagnostics::reset_peak(device_);
    for (std::int64_t i = 0; i < steps; ++i) step();
    Json result = tally.take(steps);
    result.update(times_);
    result.update({{"losses", losses_},
                   {"gradient_norms", norms_},
                   {"warmup_ms", warmup_ms},
                   {"peak_bytes", diagnostics::device_memory(device_).peak_bytes},
                   {"between_bytes", between},
                   {"pool_peak_bytes", engine_->memory().pool_peak},
                   {"gradient_pool_peak_bytes", engine_->memory().gradient_pool_peak},
                   {"optimizer_bytes", optimizer_->state_bytes()},
                   {"tokens", batch_.num_tokens()},
                   {"images", batch_.num_images()}});
    if (graphs_) {
      const train::StepGraphs::Counts counts = graphs_->counts();
      result["graphs"] = {{"recorded", counts.recorded},
                          {"replayed", counts.replayed},
                          {"ran", counts.ran},
                          {"pool_bytes", counts.pool_bytes}};
      // A replay allocates nothing: what it works in is the graphs' pool.
      result["peak_bytes"] = result["peak_bytes"].get<std::int64_t>() + counts.pool_bytes;
    }
    if (config_.at("profile")) {
      KernelEvents events;
      const HostClock wall;
      step();
      result["profiled_ms"] = wall.milliseconds();
      result["timeline"] = events.finish();
    }
    return result;
  }

 private:
  // As a loader does it: the next step's input is made while the GPU works on this one.
  void step() {
    diagnostics::DeviceClock device_clock(device_);
    const HostClock host;
    device_clock.now();
    std::size_t forward = 0;  // as a graph, forward and backward are one
    double forward_host = 0;
    const auto after_forward = [&] {
      forward = device_clock.now();
      forward_host = host.milliseconds();
    };
    const std::int64_t passes = config_.value("passes", 1);
    for (std::int64_t earlier = 1; earlier < passes; ++earlier) {
      engine_->set_gradient_sync(false);
      train::run_pass(*model_, input_, {});
    }
    engine_->set_gradient_sync(true);
    const train::PassLosses pass = graphs_ ? graphs_->run(input_, after_forward)
                                           : train::run_pass(*model_, input_, after_forward);
    const auto backward = device_clock.now();
    const double backward_host = host.milliseconds();
    input_ = models::prepare(*model_, batch_, input_options_);
    const double prepared = host.milliseconds();
    const auto agreement = engine_->agree();
    const double agreed = host.milliseconds();
    require(agreement.finite, "a gradient is not finite");
    optimizer_->step(config_.at("lr"), optim::clip_factor(agreement.gradient_norm, 1.0));
    engine_->clear_gradients();
    const auto end = device_clock.now();
    synchronize(device_);
    record("step_ms", host.milliseconds());
    record("forward_ms", 1e-3 * device_clock.microseconds(forward));
    record("backward_ms",
           1e-3 * (device_clock.microseconds(backward) - device_clock.microseconds(forward)));
    record("update_ms",
           1e-3 * (device_clock.microseconds(end) - device_clock.microseconds(backward)));
    record("forward_host_ms", forward_host);
    record("backward_host_ms", backward_host - forward_host);
    record("prepare_host_ms", prepared - backward_host);
    record("until_agreed_host_ms", agreed);
    losses_.push_back(pass.loss.item<double>());
    norms_.push_back(agreement.gradient_norm);
  }

  void record(const char* what, double milliseconds) { times_[what].push_back(milliseconds); }

  const Json& config_;
  c10::Device device_;
  std::unique_ptr<c10::StreamGuard> stream_;
  std::shared_ptr<models::LanguageModel> model_;
  std::shared_ptr<shard::Engine> engine_;
  std::unique_ptr<train::StepGraphs> graphs_;  // null: steps run
  std::unique_ptr<optim::AdamW> optimizer_;
  PackedBatch batch_;
  models::InputOptions input_options_;
  std::shared_ptr<const models::ModelInput> input_;
  Json times_ = Json::object();  // of each step, by what was timed
  std::vector<double> losses_, norms_;
};

}  // namespace

Json measure_steps(const Json& config) {
  diagnostics::device_memory(device_from(config));  // counts from here on, on the CPU
  return StepJob(config).measure();
}

}  // namespace floe::bench
