#include "floe/train/run_config.h"

#include <algorithm>
#include <limits>
#include <set>

#include "floe/checkpoint/load/resume.h"
#include "floe/data/sources/source.h"
#include "floe/optim/lr_schedule.h"
#include "floe/schema/schema.h"
#include "floe/train/phases/phase_schedule.h"
#include "floe/train/reporting/metric_names.h"
#include "floe/train/setup/run_setup.h"

namespace floe::train {
namespace {

std::string data_problem(const RunConfig& c) {
  const auto sources = data::sources_of(c.data);
  const auto are_images = [](bool wanted) {
    return [wanted](const auto& source) { return source->info().has_images == wanted; };
  };
  // "data.laion and data.mmc4": those of a kind that there are.
  const auto names = [&](bool images, const char* conjunction) {
    std::vector<std::string> all;
    for (const auto& source : data::data_sources())
      if (are_images(images)(source)) all.push_back("data." + source->id());
    return join(all, str(" ", conjunction, " "));
  };
  if (sources.empty() && !c.data.batches)
    return str("names nothing to train on; set ", names(true, "or"), ", ", names(false, "or"),
               " or data.batches");
  const bool images = std::any_of(sources.begin(), sources.end(), are_images(true));
  const bool text = std::any_of(sources.begin(), sources.end(), are_images(false));
  if (c.model.type == models::ModelConfig::Type::causal_lm && images)
    return str("has image-text sources, which a causal_lm cannot read; use ", names(false, "or"));
  if (c.model.type == models::ModelConfig::Type::flamingo && text)
    return str("has plain text, which a flamingo is not trained on; use ", names(true, "and"));
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
  if (c.dist.backend == "gloo")
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

// Keys that a language model alone does not read, such as freeze_lm_embeddings: its table trains
// with the rest unless train.trainable says otherwise.
std::string flamingo_keys_problem(const RunConfig& c) {
  using models::ModelConfig;
  if (c.model.type == ModelConfig::Type::flamingo) return "";
  const auto values_of = [](const ModelConfig& model) {
    return config::schema_of<ModelConfig>().write(model, config::Write::all);
  };
  const config::Value given = values_of(c.model), unset = values_of({});
  for (const char* key : {"cross_attn_every_n_layers", "perceiver", "cross_attn",
                          "vision_tokens_after_ln_post", "only_attend_immediate_media",
                          "freeze_lm_embeddings", "media_token_id", "endofchunk_token_id"})
    if (*given.at(key) != *unset.at(key))
      return str("has ", key, ", which has no effect with type: ", config::enum_name(c.model.type),
                 "; remove it, or set type: flamingo");
  return "";
}

std::string auto_problem(const RunConfig& c) {
  return c.strategy.automatic && c.phases.size() > 1
             ? "has auto, which cannot choose for several phases, whose steps differ; name a "
               "strategy, such as strategy=full_shard"
             : "";
}

// ---- what trains, how long, and at which rates ----

std::string names_problem(const RunConfig& c) {
  std::set<std::string> known;
  for (const PhaseConfig& phase : c.phases)
    if (!known.insert(phase.name).second)
      return str("has two entries called '", phase.name, "'; give each a name of its own");
  return "";
}

std::string trainable_problem(const RunConfig& c) {
  return !c.phases.empty() && c.train.trainable
             ? "and train.trainable both say what trains; keep one of them"
             : "";
}

std::string cycle_problem(const RunConfig& c) {
  if (!c.train.cycle_phases || c.phases.size() > 1) return "";
  return str("has cycle_phases, but there ", c.phases.empty() ? "are no phases" : "is one phase",
             "; remove it, or list two phases or more");
}

// A phase that others come after has to end.
std::string ends_problem(const RunConfig& c) {
  for (std::size_t p = 0; p < c.phases.size(); ++p) {
    const PhaseConfig& phase = c.phases[p];
    const bool followed = c.train.cycle_phases || p + 1 < c.phases.size();
    if (followed && !phase.steps && !phase.until)
      return str("has no end for '", phase.name, "', so that no other would have a turn after it; ",
                 "set its steps or until");
  }
  return "";
}

std::string steps_problem(const RunConfig& c) {
  const auto most = PhaseSchedule(c.phases, c.train.cycle_phases).most_steps();
  if (!c.train.steps && !c.train.epochs && !most) {
    if (c.phases.empty()) return "says neither steps nor epochs; set train.steps or train.epochs";
    return str("says neither steps nor epochs, and the phases ",
               c.train.cycle_phases ? "are a cycle without an end" : "do not all have steps",
               "; set train.steps or train.epochs");
  }
  // The steps of a single phase have always been those of the run.
  if (c.phases.size() > 1 && c.train.steps && most && *c.train.steps > *most)
    return str("has ", *c.train.steps, " steps, but the phases end after ", *most,
               "; lower train.steps, leave steps out of the last phase, or set train.cycle_phases");
  return "";
}

// Why the end of `what` ("'a' train until", "the run go on until") cannot be found; empty: it can.
std::string plateau_problem(const RunConfig& c, const UntilConfig& until, const std::string& what) {
  const char* stops = higher_is_better(until.metric) ? " stops rising" : " stops falling";
  if (!c.train.validation.every_steps)
    return str("lets ", what, " ", until.metric, stops,
               ", but there is no validation; set train.validation");
  std::vector<std::string> known = validation_metrics(c);
  if (std::find(known.begin(), known.end(), until.metric) != known.end() ||
      may_be_of_task(c, until.metric))
    return "";
  if (!c.train.validation.tasks.empty()) known.push_back("val_TASK_METRIC of a task");
  return str("lets ", what, " ", until.metric, stops, ", which validation does not measure",
             metrics_there_are(until.metric, known));
}

std::string until_problem(const RunConfig& c) {
  for (const PhaseConfig& phase : c.phases) {
    if (!phase.until) continue;
    const std::string problem =
        plateau_problem(c, *phase.until, str("'", phase.name, "' train until"));
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string stop_problem(const RunConfig& c) {
  return c.train.stop ? plateau_problem(c, *c.train.stop, "the run go on until") : "";
}

constexpr const char* kLowerMinLr = "; lower min_lr, or raise lr";

std::string min_lr_problem(const RunConfig& c) {
  const double min_lr = c.train.schedule.min_lr, lr = c.train.optimizer.lr;
  if (!c.phases.empty() || min_lr <= lr) return "";
  return str("has schedule.min_lr ", min_lr, ", more than optimizer.lr, which is ", lr,
             kLowerMinLr);
}

std::string min_lr_of_phases_problem(const RunConfig& c) {
  for (const PhaseConfig& phase : c.phases) {
    const double min_lr = phase.schedule.value_or(c.train.schedule).min_lr;
    const double lr = phase.lr.value_or(c.train.optimizer.lr);
    if (min_lr > lr)
      return str("lets '", phase.name, "' end at ", phase.schedule ? "its" : "train.schedule.",
                 phase.schedule ? " min_lr " : "min_lr ", min_lr, ", more than ",
                 phase.lr ? "its lr" : "train.optimizer.lr", ", which is ", lr, kLowerMinLr);
  }
  return "";
}

// A rate that falls needs to know until where.
std::string schedule_problem(const RunConfig& c) {
  const PhaseSchedule phases(c.phases, c.train.cycle_phases);
  // Which phases have a known number of updates does not depend on how many steps there are.
  const std::int64_t any = std::numeric_limits<std::int32_t>::max();
  for (std::size_t p = 0; p < c.phases.size(); ++p) {
    const auto& schedule = c.phases[p].schedule;
    if (!schedule || !optim::schedule_type(schedule->type).falls) continue;
    if (!phases.updates_in(any, p))
      return str(
          "has a schedule for '", c.phases[p].name,
          "' that falls until the set's last update, but until makes it unknown which one that "
          "is; use a constant schedule, or ",
          c.train.cycle_phases ? "steps without until" : "set its steps");
  }
  return "";
}

// Each is a problem of its own, so that all of them are reported together.
void describe_phase_checks(config::Schema<RunConfig>& s) {
  s.check("train", steps_problem);
  s.check("train", cycle_problem);
  s.check("phases", names_problem);
  s.check("phases", trainable_problem);
  s.check("phases", ends_problem);
  s.check("phases", until_problem);
  s.check("train", stop_problem);
  s.check("train", min_lr_problem);
  s.check("phases", min_lr_of_phases_problem);
  s.check("phases", schedule_problem);
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
  s.check("strategy", auto_problem);
  describe_phase_checks(s);
  s.check("data", data_problem);
  s.check("precision", [](const C& c) {
    return c.precision.loss_scale && !c.computes_in_fp16()
               ? "has a loss_scale, which only fp16 needs; remove it, or train in fp16"
               : "";
  });
  s.check("checkpoint", keep_best_problem);
  s.check("model", flamingo_keys_problem);
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
  s.check("checkpoint", [](const C& c) -> std::string {
    const FrozenConfig& frozen = c.strategy.frozen;
    const bool eight_bit =
        frozen.matrix_dtype() == DType::i8 || frozen.matrix_dtype() == DType::f8_e4m3;
    if (!eight_bit || c.checkpoint.content != checkpoint::Content::full) return "";
    return str("has content: full, but strategy.frozen.", frozen.compute ? "compute" : "dtype",
               " rounds frozen matrices to 8 bits; save with content: trainable, which names their "
               "files, and put both together with floe export");
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
