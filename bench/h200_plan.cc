// What the plan says of a step, without a GPU (plan.py).
#include <memory>

#include "flamingo_job.h"
#include "floe/plan/machine/simulate.h"
#include "floe/plan/rehearsal/rehearse.h"
#include "h200_tasks.h"

namespace floe::bench {

Json plan_step(const Json& config) {
  const Json& spec = config.at("model");
  const auto model = language_model(spec);
  shard::ShardOptions options = flamingo_sharding(config);
  options.world = nullptr;
  const int world = config.at("world");
  const std::shared_ptr<torch::nn::Module> module(model, &model->module());
  plan::Machine machine = plan::find_machine(config.value("machine", "h200"));
  machine.gpus_per_node = config.value("ranks_per_node", machine.gpus_per_node);
  const plan::Trace trace =
      plan::rehearse({module, units_of(spec), options, world, machine.of_cores()},
                     {flamingo_batch(config, 0), compute_dtype(config)});
  constexpr double kAdamBytes = 28;  // fp32: weight, two moments and gradient; three are written
  const plan::StepTime time =
      plan::simulate(trace, {trace.gradient_numel, kAdamBytes, world}, machine);
  const std::int64_t state = 2 * trace.gradient_numel * static_cast<std::int64_t>(sizeof(float));
  std::int64_t gathers = 0, reduces = 0;
  for (const plan::TraceStep& step : trace.steps)
    if (step.kind == plan::TraceStep::Kind::collective)
      (step.collective.kind == comm::FakeCollective::Kind::all_gather ? gathers : reduces) += 1;
  return {{"step_ms", 1e3 * time.seconds},
          {"peak_bytes", trace.memory.peak + state},
          {"products_ms", 1e3 * time.products},
          {"attention_ms", 1e3 * time.attention},
          {"passes_ms", 1e3 * time.passes},
          {"gaps_ms", 1e3 * time.gaps},
          {"exposed_ms", 1e3 * time.exposed},
          {"update_ms", 1e3 * time.update_seconds},
          {"tflop", time.flops / 1e12},
          {"gathers", gathers},
          {"reduces", reduces}};
}

}  // namespace floe::bench
