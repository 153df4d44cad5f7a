#include "floe/plan/plan_config.h"

#include "floe/checkpoint/load/resume.h"
#include "floe/train/run_config.h"
#include "floe/train/setup/run_setup.h"

namespace floe::plan {
namespace {

// Sizes beyond these are slips of the keyboard, and sums over them would not fit into 64 bits.
constexpr std::int64_t kMostRows = 100'000'000, kMostWidth = 1 << 18, kMostLayers = 10'000;

config::Field<std::int64_t> size_field(config::Schema<ModelConfig>& s, const std::string& name,
                                       std::int64_t ModelConfig::*member, std::int64_t least,
                                       std::int64_t most, const std::string& help) {
  const std::string range = str("from ", least, " to ", most);
  return s.field(name, member, help).rule(range, "be " + range, [=](std::int64_t value) {
    return value >= least && value <= most;
  });
}

// The block `data:` with its name in front of what is wrong with it.
struct OnlyData {
  DataConfig data;
};
void describe(config::Schema<OnlyData>& s) {
  s.section("data", &OnlyData::data, "What it is trained on");
}

}  // namespace

void describe(config::Schema<ModelConfig>& s) {
  using C = ModelConfig;
  s.choice("type", &C::type, {"transformer"}, "Kind of model").required();
  size_field(s, "vocab", &C::vocab, 1, kMostRows, "Rows of the embedding").required();
  size_field(s, "dim", &C::dim, 1, kMostWidth, "Width of the residual stream").required();
  size_field(s, "layers", &C::layers, 1, kMostLayers, "Number of decoder layers").required();
  size_field(s, "heads", &C::heads, 1, kMostWidth, "Attention heads; must divide dim").required();
  size_field(s, "context", &C::context, 1, kMostRows, "Positions, each a learned row").required();
  size_field(s, "mlp_ratio", &C::mlp_ratio, 1, 64, "Width of the MLP as a multiple of dim");
  size_field(s, "adapter", &C::adapter, 0, kMostWidth,
             "Width of a trainable bottleneck after each layer; 0 is none");
  s.field("tied", &C::tied, "Whether the head shares the embedding's weight");
  s.field("dropout", &C::dropout, "Share of activations that are dropped").at_least(0).less_than(1);
  s.check("heads", [](const C& c) {
    return c.dim % c.heads == 0
               ? ""
               : str("is ", c.heads, ", but must divide model.dim, which is ", c.dim);
  });
}

int PlanSettings::world_size() const {
  return static_cast<int>(world.value_or(dist.world_size.value_or(1)));
}

std::string PlanSettings::world_problem() const {
  if (!world || !dist.world_size || *world == *dist.world_size) return "";
  return str("is ", *world, ", but dist.world_size is ", *dist.world_size, "; remove one of them");
}

void describe(config::Schema<PlanConfig>& s) {
  s.section("model", &PlanConfig::model, "The model");
  describe_settings(s);
}

void describe(config::Schema<RunPlanConfig>& s) {
  using C = RunPlanConfig;
  s.section("model", &C::model, "The model");
  describe_settings(s);
  s.field("phases", &C::phases, "Sets of parameters that train in turn");
  const std::string unread = "Of training; no plan depends on it";
  s.field("run", &C::run, unread);
  s.field("data", &C::data, unread);
  s.field("precision", &C::precision, unread);
  s.field("checkpoint", &C::checkpoint, unread);
  s.field("log", &C::log, unread);
}

config::Loaded<PlanConfig> load_plan_config(const config::Layers& layers) {
  return config::load<PlanConfig>(layers);
}

config::Loaded<RunPlanConfig> load_run_plan_config(const config::Layers& layers) {
  auto loaded = config::load<RunPlanConfig>(layers);
  models::ModelConfig& model = loaded.config.model;
  train::resolve_model_paths(model, layers);
  model.weights = checkpoint::weights_at(model.weights, "model.weights");
  return loaded;
}

DataConfig data_of(const config::Loaded<RunPlanConfig>& loaded) {
  const RunPlanConfig& config = loaded.config;
  require<ConfigError>(!config.data.is_null(),
                       "the configuration has no block data, whose batches could be planned; add "
                       "one, or say --batch");
  config::Value tree{config::Map()};
  (*tree.as<config::Map>())["data"] = config.data;
  train::RunConfig run;
  run.data = config::load<OnlyData>(tree).config.data;
  train::resolve_inputs(run, loaded.values);
  train::require_inputs({run, loaded.values}, config.world_size(), 0);
  return run.data;
}

std::uint64_t seed_of(const RunPlanConfig& config) {
  const config::Value* seed = config.run.at("seed");
  const auto* number = seed ? seed->as<std::int64_t>() : nullptr;
  return number ? static_cast<std::uint64_t>(*number) : 0;
}

}  // namespace floe::plan
