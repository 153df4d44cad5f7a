// What the plan says of a step, and which strategy it would choose, without a GPU (plan.py,
// plan_best.py, h200_best.py).
#include <memory>

#include "flamingo_job.h"
#include "floe/plan/machine/simulate.h"
#include "floe/plan/rehearsal/rehearse.h"
#include "floe/plan/step/best.h"
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

namespace {

// A choice as "steps" takes it.
Json overrides_of(const plan::Choice& choice) {
  const StrategyConfig& strategy = choice.strategy;
  const bool resident = strategy.frozen.residency == shard::Residency::resident;
  return {{"checkpointing", strategy.activation_checkpointing},
          {"keep", strategy.activations.keep == ActivationsConfig::Keep::products},
          {"offload", strategy.activations.offload},
          {"share", strategy.activations.share},
          {"residency", resident ? "resident" : "sharded"},
          {"passes", choice.cut}};
}

}  // namespace

Json best_strategies(const Json& config) {
  const auto model = language_model(config.at("model"));
  plan::PlanSubject subject;
  subject.type = "benchmark";
  subject.model = {model, &model->module()};
  subject.world_size = config.at("world");
  subject.strategy.units = units_of(config.at("model")).units;
  plan::StepSettings settings{plan::find_machine(config.at("machine")),
                              plan::parse_batch(config.at("batch"))};
  if (config.contains("inter"))
    settings.machine.inter_gbs = plan::parse_rate("inter", config.at("inter"));
  plan::SearchSettings search;
  search.step = settings;
  search.budget = config.value("budget_bytes", settings.machine.memory.bytes);
  const plan::Best best = plan::find_best(subject, search);
  Json answer = plan::to_json(best);
  for (std::size_t i = 0; i < best.choices.size(); ++i)
    answer["best"][i]["overrides"] = overrides_of(best.choices[i]);
  return answer;
}

}  // namespace floe::bench
