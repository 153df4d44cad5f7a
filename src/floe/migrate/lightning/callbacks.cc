#include <algorithm>

#include "floe/core/str.h"
#include "floe/migrate/lightning/keys.h"

namespace floe::migrate {
namespace {

using config::Value;

std::string own_metric(const Value& value) {
  std::string name = value.scalar_text();
  std::replace(name.begin(), name.end(), '/', '_');
  return name == "validation_loss" || name == "valid_loss" || name == "eval_loss" ? "val_loss"
                                                                                  : name;
}

bool is_measured(const std::string& metric) {
  return metric == "val_loss" || metric.starts_with("val_loss_") ||
         metric.starts_with("val_perplexity_");
}

// What ranks checkpoints, if it is something that floe measures, and which way is known.
std::string ranking_metric(const Target& target) {
  const Value* metric = target.trainer.at("monitor");
  const std::string name = metric && !metric->is_null() ? own_metric(*metric) : "";
  const Value* mode = target.trainer.at("mode");
  const bool known_way = !mode || !is_reference(*mode);
  return known_way && (is_measured(name) || name.starts_with("loss_")) ? name : "";
}

// -1 keeps all; with a metric the best stay beside the newest.
void save_top_k(const Value& value, const std::string& comment, Target& target) {
  const std::int64_t kept = whole(value, "save_top_k");
  if (kept < 0)
    target.page.set("checkpoint.keep", Value(), comment);
  else if (kept > 0 && !ranking_metric(target).empty())
    target.page.set("checkpoint.keep_best.n", value, comment);
  else if (kept > 0)
    target.page.set("checkpoint.keep", value, comment);
  else
    target.page.leave_out("save_top_k: 0: floe keeps at least the newest checkpoint.");
}

void monitor(const Value& value, const std::string& comment, Target& target) {
  if (value.is_null()) return;
  const Value* kept = target.trainer.at("save_top_k");
  const std::int64_t number = kept ? whole(*kept, "save_top_k") : 1;
  const Value* mode = target.trainer.at("mode");
  const std::string metric = ranking_metric(target);
  if (mode && is_reference(*mode)) {
    const std::string sentence =
        str("monitor: ", value.shown(),
            ": which way it is better is a reference that this file does not resolve; "
            "checkpoint.keep_best is left out");
    target.page.leave_out(sentence + ".");
    target.page.warn(sentence);
  } else if (metric.empty()) {
    const std::string sentence = str("monitor: ", value.shown(),
                                     ": floe does not measure it; it has val_loss, "
                                     "val_loss_SOURCE, val_perplexity_SOURCE and loss_SOURCE");
    target.page.leave_out(sentence + ".");
    target.page.warn(sentence);
  } else if (number <= 0) {
    target.page.leave_out(str("monitor: ", value.shown(), ": no checkpoint stays because of it."));
  } else {
    target.page.set("checkpoint.keep_best.metric", word(metric, value), comment);
    if (!kept)
      target.page.set("checkpoint.keep_best.n", Value(std::int64_t{1}),
                      "save_top_k, which is not here: 1.");
  }
}

void keep_mode(const Value& value, const std::string& comment, Target& target) {
  if (target.page.has("checkpoint.keep_best.metric"))
    target.page.set("checkpoint.keep_best.better",
                    word(value.scalar_text() == "max" ? "higher" : "lower", value), comment);
  else
    target.page.leave_out(comment);
}

// Lightning's 0 is off.
void save_every_steps(const Value& value, const std::string& comment, Target& target) {
  if (value.is_null()) return;
  target.page.set("checkpoint.every_steps",
                  whole(value, "every_n_train_steps") == 0 ? Value() : value, comment);
}

void every_epochs(const Value& value, const std::string& comment, Target& target) {
  if (value.is_null()) return;
  if (whole(value, "every_n_epochs") == 0)
    return target.page.set("checkpoint.every_epochs", Value(), comment);
  if (!target.page.has("train.steps"))
    return target.page.set("checkpoint.every_epochs", value, comment);
  target.page.leave_out(str("every_n_epochs: ", value.scalar_text(),
                            ": the run ends by max_steps, so epochs are not counted; "
                            "use every_n_train_steps."));
}

void stop_monitor(const Value& value, const std::string& comment, Target& target) {
  target.page.set("train.stop.metric", word(own_metric(value), value), comment);
}

// Lightning's 0 and 1 both stop at the first validation without a fall.
void stop_patience(const Value& value, const std::string& comment, Target& target) {
  if (value.is_null()) return;
  const bool is_none = whole(value, "patience") == 0;
  target.page.set("train.stop.patience", is_none ? Value(std::int64_t{1}, value.origin) : value,
                  comment);
}

void wandb_offline(const Value& value, const std::string& comment, Target& target) {
  target.page.set("log.wandb.mode", word(truth(value, "offline") ? "offline" : "online", value),
                  comment);
}

void wandb_model(const Value& value, const std::string& comment, Target& target) {
  const bool all = value.scalar_text() == "all";
  if (all || (value.as<bool>() && *value.as<bool>()))
    target.page.set("log.wandb.checkpoints", Value(true, value.origin), comment);
}

void run_name(const Value& value, const std::string& comment, Target& target) {
  if (!value.is_null()) target.page.set("run.name", word(value.scalar_text(), value), comment);
}

}  // namespace

std::string obstacle_to_stop(const Value& arguments) {
  const Value* metric = arguments.at("monitor");
  const Value* mode = arguments.at("mode");
  for (const Value* value : {metric, mode})
    if (value && is_reference(*value))
      return str(value->scalar_text(), " is a reference that this file does not resolve");
  if (mode && mode->scalar_text() == "max")
    return "floe ends a run when a metric no longer falls, never when one no longer rises";
  if (metric && !is_measured(own_metric(*metric)))
    return str("floe does not measure ", metric->shown(),
               "; it has val_loss, val_loss_SOURCE and val_perplexity_SOURCE");
  return "";
}

const LightningBlock& checkpoint_block() {
  static const LightningBlock block{
      "`ModelCheckpoint`",
      "`OnExceptionCheckpoint` is `checkpoint.on_exception`, which needs no collective and cannot "
      "hang.",
      {
          {"every_n_train_steps", "checkpoint.every_steps",
           "Updates between two saves; 0 is null, none.", save_every_steps},
          {"every_n_epochs", "checkpoint.every_epochs",
           "Epochs between two saves, beside train.epochs; 0 is null, none.", every_epochs},
          {"save_top_k", "checkpoint.keep, checkpoint.keep_best.n",
           "With a monitor the best stay beside the newest, else the newest; -1 is null, all.",
           save_top_k},
          {"monitor", "checkpoint.keep_best.metric", "val_loss, val_loss_SOURCE or loss_SOURCE.",
           monitor},
          {"mode", "checkpoint.keep_best.better", "min is lower, max is higher.", keep_mode},
          {"save_last", "", "last is always a link to the newest."},
          {"save_weights_only", "",
           "Checkpoints are for going on; floe export writes weights alone."},
          {"dirpath", "", "RUN/checkpoints."},
          {"filename", "", "step_N."},
          {"auto_insert_metric_name", "", "step_N."},
          {"train_time_interval", "", "SIGUSR1 saves at once, whenever it is sent."},
          {"save_on_train_epoch_end", "", "checkpoint.every_epochs."},
          {"enable_version_counter", "", "An earlier run moves aside with run.resume: never."},
          {"verbose", "", "Every save has a line in the log."},
      }};
  return block;
}

const LightningBlock& early_stop_block() {
  static const LightningBlock block{
      "`EarlyStopping`",
      "Without a counterpart as a whole where `monitor` is nothing that floe measures or `mode` is "
      "`max`: a run ends when a metric no longer falls.",
      {
          {"monitor", "train.stop.metric", "What validation measures.", stop_monitor},
          {"patience", "train.stop.patience", "Validations in a row without a fall; 0 is 1.",
           stop_patience},
          {"min_delta", "train.stop.min_delta", "What has to be exceeded for a fall to count."},
          {"mode", "", "min: the metric has to fall."},
          {"strict", "", "A metric that does not exist is refused at the start."},
          {"check_finite", "",
           "Updates that are not finite are skipped; train.max_skipped ends the run."},
          {"verbose", "", "The log says so."},
          {"check_on_train_epoch_end", "", "Where validation is."},
          {"stopping_threshold", "", "Only a fall that ends counts.", warn_if_set},
          {"divergence_threshold", "", "Only a fall that ends counts.", warn_if_set},
      }};
  return block;
}

const LightningBlock& diagnostics_block() {
  static const LightningBlock block{
      "xlm-core's `FSDPDiagnosticsCallback`",
      "",
      {
          {"num_logged_batches", "log.diagnostics.batches",
           "First batches whose memory is looked at."},
          {"log_module_tree_top_k", "log.diagnostics.tree_top_k", "Units that are named."},
          {"log_to_logger", "log.diagnostics.to_loggers", "The numbers go to the loggers too."},
      }};
  return block;
}

const LightningBlock& wandb_block() {
  static const LightningBlock block{
      "`WandbLogger`",
      "",
      {
          {"project", "log.wandb.project", "Project of the W&B run."},
          {"entity", "log.wandb.entity", "Team or user."},
          {"offline", "log.wandb.mode", "offline, or online.", wandb_offline},
          {"name", "run.name", "Name of the run, and its folder's.", run_name},
          {"log_model", "log.wandb.checkpoints", "Checkpoints become files of the W&B run.",
           wandb_model},
          {"save_dir", "", "RUN/wandb."},
          {"version", "", "A run keeps its id when it goes on."},
          {"id", "", "A run keeps its id when it goes on."},
          {"group", "", "W&B's groups can be set on its page."},
          {"tags", "", "W&B's tags can be set on its page."},
          {"prefix", "", "Names of metrics are in docs/metrics.md."},
          {"resume", "", "A run goes on in its own W&B run, always."},
      }};
  return block;
}

}  // namespace floe::migrate
