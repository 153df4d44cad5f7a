#include "floe/plan/plan_run.h"

#include "floe/checkpoint/load/resume.h"
#include "floe/config/schema.h"
#include "floe/models/build.h"
#include "floe/train/phases/phases.h"

namespace floe::train {

void describe(config::Schema<PlanRunConfig>& s) {
  using C = PlanRunConfig;
  s.section("model", &C::model, "The model");
  plan::describe_settings(s);
  s.field("phases", &C::phases, "Sets of parameters that train in turn");
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
  models::ModelConfig& model = loaded.config.model;
  model.weights = checkpoint::weights_at(model.weights, "model.weights");
  return loaded;
}

plan::PlanSubject subject_of(const PlanRunConfig& config) {
  const models::BuiltModel built = models::build_model(config.model, 0);
  plan::PlanSubject subject = plan::bare_subject(config);
  subject.type =
      config.model.type == models::ModelConfig::Type::flamingo ? "flamingo" : "causal_lm";
  subject.model = built.module;
  if (config.phases.size() > 1)
    subject.sets = parameter_sets(config.phases);
  else
    subject.trainable = config.phases.empty() ? config.train.trainable : config.phases[0].train;
  return subject;
}

}  // namespace floe::train
