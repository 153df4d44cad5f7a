#include "floe/train/run_config.h"

#include "floe/checkpoint/load/resume.h"
#include "floe/config/schema.h"
#include "floe/train/phases/phase_checks.h"
#include "floe/train/reporting/metric_names.h"
#include "floe/train/setup/run_setup.h"

namespace floe::train {
namespace {

std::string data_problem(const RunConfig& c) {
  const bool images = c.data.laion || c.data.mmc4;
  if (!images && !c.data.text && !c.data.batches)
    return "names nothing to train on; set data.laion, data.mmc4, data.text or data.batches";
  if (c.model.type == models::ModelConfig::Type::causal_lm && images)
    return "has image-text sources, which a causal_lm cannot read; use data.text";
  if (c.model.type == models::ModelConfig::Type::flamingo && c.data.text)
    return "has plain text, which a flamingo is not trained on; use data.laion and data.mmc4";
  return "";
}

std::string validation_problem(const RunConfig& c) {
  const auto& shards = c.train.validation.shards.by_source;
  const std::vector<std::string> sources = c.data.sources();
  for (const auto& [source, pattern] : shards) {
    if (source.empty() && sources.size() != 1)
      return str("has validation.shards without a source, but the run has ", sources.size(),
                 " sources; write shards: {", sources.empty() ? "laion" : sources.front(), ": …}");
    if (!source.empty() && std::find(sources.begin(), sources.end(), source) == sources.end())
      return str("has validation.shards of '", source,
                 "', which is no source of data:", did_you_mean(source, sources));
  }
  return "";
}

std::string graphs_problem(const RunConfig& c) {
  if (!c.strategy.cuda_graphs) return "";
  if (c.dist.backend == "gloo" || c.dist.backend == "mpi")
    return str("has cuda_graphs, but collectives of dist.backend: ", c.dist.backend,
               " cannot be recorded; use nccl, or set cuda_graphs to false");
  if (c.strategy.cpu_offload || c.strategy.activations.offload)
    return "has cuda_graphs beside cpu_offload or activations.offload, which wait for the host; "
           "set one "
           "of them to false";
  const bool drops_out = c.model.dropout != models::ModelConfig::Dropout::none ||
                         (c.model.lora && c.model.lora->dropout > 0);
  if (drops_out && !c.strategy.activation_checkpointing.empty())
    return "has cuda_graphs beside activation_checkpointing and dropout, which a recorded step "
           "cannot "
           "repeat; turn one of the three off";
  return "";
}

}  // namespace

void describe(config::Schema<RunSection>& s) {
  s.field("name", &RunSection::name, "Name of the run; its files are in dir/name")
      .not_empty()
      .rule("without '/'", "be a plain name without '/'", [](const std::string& name) {
        return name.find('/') == std::string::npos && name != "." && name != "..";
      });
  s.field("dir", &RunSection::dir, "Folder of all runs").not_empty();
  s.field("seed", &RunSection::seed, "Of everything random: new weights, order of data, dropout");
  s.field(
       "resume", &RunSection::resume,
       "auto: from the run's own newest valid checkpoint; never; or the path of a checkpoint (or "
       "run folder) where the run begins: its own newer ones win on every later start")
      .not_empty();
  s.field("resume_data", &RunSection::resume_data,
          "continue: the data goes on where the checkpoint was; restart: from its beginning, with "
          "weights, optimizer and step kept (for other shards or sources)");
  s.field("stop_grace_s", &RunSection::stop_grace_s,
          "Seconds from a signal that stops the run until its state has to be on disk: a step that "
          "is not done by then is given up, and the state before it saved by each rank alone")
      .more_than(0);
}

bool RunConfig::computes_in_fp16() const {
  return strategy.mixed_precision.param == DType::f16 ||
         (precision.autocast && *precision.autocast == DType::f16);
}

void describe(config::Schema<RunConfig>& s) {
  using C = RunConfig;
  s.section("run", &C::run, "Name, place and seed of the run");
  s.section("dist", &C::dist, "How the ranks find each other");
  s.section("model", &C::model, "What is trained");
  s.section("data", &C::data, "What it is trained on");
  s.section("train", &C::train, "How a step goes and how many there are");
  s.field("phases", &C::phases, "Sets of parameters that train in turn; empty: train.trainable");
  s.section("strategy", &C::strategy, "How the model's state is spread over the ranks");
  s.section("precision", &C::precision, "Autocast and loss scaling");
  s.section("checkpoint", &C::checkpoint, "When and how the run is saved");
  s.section("log", &C::log, "What is written and how often");
  s.check("train", validation_problem);
  s.check("strategy", graphs_problem);
  describe_phase_checks(s);
  s.check("data", data_problem);
  s.check("precision", [](const C& c) {
    return c.precision.loss_scale && !c.computes_in_fp16()
               ? "has a loss_scale, which only fp16 needs; remove it, or train in fp16"
               : "";
  });
  s.check("checkpoint", keep_best_problem);
  s.check("model", [](const C& c) {
    return c.model.skip_init && c.run.resume == "never"
               ? "has skip_init, which leaves every parameter without a value, but run.resume is "
                 "never, so there is no checkpoint to take them from; remove one of the two"
               : "";
  });
  s.check("checkpoint", [](const C& c) {
    return c.checkpoint.every_epochs && !c.train.epochs
               ? "has every_epochs, but train.epochs is not set; use every_steps"
               : "";
  });
  s.check("checkpoint", [](const C& c) {
    const auto& frozen = c.strategy.frozen.dtype;
    const bool eight_bit = frozen == DType::i8 || frozen == DType::f8_e4m3;
    return eight_bit && c.checkpoint.content == checkpoint::Content::full
               ? "has content: full, but strategy.frozen.dtype rounds frozen matrices to 8 bits; "
                 "save with "
                 "content: trainable, which names their files, and put both together with floe "
                 "export"
               : "";
  });
}

config::Loaded<RunConfig> load_run_config(const config::Layers& layers) {
  auto loaded = config::load<RunConfig>(layers);
  RunConfig& config = loaded.config;
  resolve_inputs(config, loaded.values);
  config.model.weights = checkpoint::weights_at(config.model.weights, "model.weights");
  // What was resolved is what is printed and kept.
  config::Value values = config::schema_of<RunConfig>().write(config, config::Write::all);
  config::adopt_origins(values, loaded.values);
  loaded.values = std::move(values);
  config::bind<RunConfig>(loaded.values);  // the working folder's name may not be UTF-8
  return loaded;
}

}  // namespace floe::train
