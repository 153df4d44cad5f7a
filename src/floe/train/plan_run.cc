#include "floe/train/plan_run.h"

#include "floe/config/schema.h"
#include "floe/models/build.h"

namespace floe::train {

void describe(config::Schema<PlanRunConfig>& s) {
  using C = PlanRunConfig;
  s.field("world", &C::world, "Number of ranks; null is dist.world_size, else 1")
      .at_least(1)
      .at_most(100'000);
  s.section("model", &C::model, "The model");
  s.section("train", &C::train, "What trains");
  s.field("phases", &C::phases, "Sets of parameters that train in turn");
  s.section("strategy", &C::strategy, "How the model's state is spread over the ranks");
  s.section("dist", &C::dist, "How the ranks find each other");
  const std::string unread = "Of training; no plan depends on it";
  s.field("run", &C::run, unread);
  s.field("data", &C::data, unread);
  s.field("precision", &C::precision, unread);
  s.field("checkpoint", &C::checkpoint, unread);
  s.field("log", &C::log, unread);
}

config::Loaded<PlanRunConfig> load_plan_run(const config::Layers& layers) {
  auto loaded = config::load<PlanRunConfig>(layers);
  resolve_model_paths(loaded.config.model, layers);
  return loaded;
}

plan::PlanSubject subject_of(const PlanRunConfig& config) {
  const models::BuiltModel built = models::build_model(config.model, 0);
  plan::PlanSubject subject;
  subject.type =
      config.model.type == models::ModelConfig::Type::flamingo ? "flamingo" : "causal_lm";
  subject.model = built.module;
  subject.trainable = config.phases.empty() ? config.train.trainable : config.phases.front().train;
  subject.strategy = config.strategy;
  subject.optimizer = config.train.optimizer.type == OptimizerConfig::Type::sgd ? "sgd" : "adamw";
  subject.values_per_element = config.train.optimizer.num_moments();
  if (config.train.ema.decay) {
    subject.optimizer += " and average";
    ++subject.values_per_element;
  }
  subject.world_size = static_cast<int>(config.world.value_or(config.dist.world_size.value_or(1)));
  return subject;
}

}  // namespace floe::train
