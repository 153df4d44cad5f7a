#include "tests/config/sample_config.h"

namespace floe::test {

void describe(config::Schema<RunConfig>& s) {
  s.field("name", &RunConfig::name, "Name of the run").required().not_empty();
  s.field("dir", &RunConfig::dir, "Folder of runs");
  s.field("seed", &RunConfig::seed, "Seed of every generator").at_least(0);
}

void describe(config::Schema<ClipConfig>& s) {
  s.field("norm", &ClipConfig::norm, "Largest global norm").more_than(0);
  s.field("value", &ClipConfig::value, "Largest absolute value").more_than(0);
}

void describe(config::Schema<OptimizerConfig>& s) {
  s.choice("type", &OptimizerConfig::type, {"adamw", "sgd"}, "Update rule");
  s.field("lr", &OptimizerConfig::lr, "Learning rate").at_least(0);
  s.field("betas", &OptimizerConfig::betas, "Decay of the moments").at_least(0).less_than(1);
  s.field("decay", &OptimizerConfig::decay, "Patterns of parameters that decay").not_empty();
}

void describe(config::Schema<TrainConfig>& s) {
  s.field("steps", &TrainConfig::steps, "Number of optimizer updates").at_least(1);
  s.field("trainable", &TrainConfig::trainable,
          "Patterns of what trains; null is the model's rule");
  s.field("packed", &TrainConfig::packed, "One packed batch for all data sets");
  s.section("clip", &TrainConfig::clip, "Gradient clipping");
  s.section("optimizer", &TrainConfig::optimizer, "Optimizer");
}

void describe(config::Schema<PhaseConfig>& s) {
  s.field("name", &PhaseConfig::name, "Name of the phase").required();
  s.field("train", &PhaseConfig::train, "Patterns of what trains").required();
  s.field("steps", &PhaseConfig::steps, "Updates").at_least(1);
}

void describe(config::Schema<LoraConfig>& s) {
  s.field("rank", &LoraConfig::rank, "Rank of the adapters").at_least(1).at_most(4096);
  s.field("dropout", &LoraConfig::dropout, "Dropout before the adapters").at_least(0).less_than(1);
}

void describe(config::Schema<SampleConfig>& s) {
  s.section("run", &SampleConfig::run, "The run");
  s.section("dist", &SampleConfig::dist, "The ranks");
  s.section("train", &SampleConfig::train, "Training");
  s.field("phases", &SampleConfig::phases, "Sets of parameters that train in turn");
  s.field("lora", &SampleConfig::lora, "Adapters; null is none");
  s.field("weights", &SampleConfig::weights, "Weights of the losses").at_least(0);
  s.section("strategy", &SampleConfig::strategy, "How state is spread over the ranks");
  s.field("extra", &SampleConfig::extra, "Anything");
}

}  // namespace floe::test
