#include "floe/core/str.h"
#include "floe/migrate/lightning/keys.h"
#include "floe/schema/codec.h"

namespace floe::migrate {
namespace {

using config::Value;

void precision(const Value& value, const std::string& comment, Target& target) {
  const std::string text = value.scalar_text();
  const bool sharded = target.page.has("strategy.sharding") &&
                       *target.page.tree().at("strategy.sharding")->as<std::string>() != "no_shard";
  std::string param = "fp32", other = "fp32", autocast;
  if (text == "bf16-mixed" || text == "bf16") {
    autocast = "bf16";
  } else if (text == "16-mixed" || text == "16") {
    autocast = "fp16";
  } else if (text == "bf16-true" || text == "16-true") {
    param = other = text == "16-true" ? "fp16" : "bf16";
  } else if (text != "32-true" && text != "32" && !value.is_null()) {
    refuse(value,
           str("precision is ", value.shown(),
               ", which floe does not have; it has 32-true, bf16-mixed, 16-mixed, bf16-true and "
               "16-true"));
  }
  // As FSDPPrecision makes its MixedPrecision; DDP reduces in the type of the parameters.
  if (!autocast.empty() && sharded) other = autocast;
  if (!autocast.empty() && target.is_deepspeed) param = autocast;
  if (!autocast.empty()) target.page.set("precision.autocast", word(autocast, value), comment);
  const bool unresolved = types_are_unresolved(target);
  if (unresolved || target.page.has("strategy.mixed_precision")) {
    if (autocast.empty())
      target.page.leave_out(str("precision: ", text, ": strategy.mixed_precision is ",
                                unresolved ? "a reference" : "written out",
                                ", and wins as in Lightning."));
    return;
  }
  set_types(target, value, comment, param, other, other);
  if (target.is_deepspeed && param != "fp32")
    target.page.add_comment(
        "strategy.mixed_precision.param",
        str("DeepSpeed computes with parameters in ", param,
            " under both -mixed and -true, keeps fp32 masters of them, as floe does by itself, and "
            "reduces gradients in ",
            param, " unless its communication_data_type says otherwise."));
  else if (text.ends_with("-true") && param != "fp32")
    target.page.add_comment("strategy.mixed_precision.param",
                            "What trains keeps fp32 masters, which "
                            "Lightning's true precisions do not have.");
}

void max_steps(const Value& value, const std::string& comment, Target& target) {
  if (!value.is_null() && whole(value, "max_steps") >= 0)
    target.page.set("train.steps", value, comment);
}

void max_epochs(const Value& value, const std::string& comment, Target& target) {
  if (value.is_null() || whole(value, "max_epochs") < 0) return;
  if (target.page.has("train.steps"))
    target.page.leave_out(str("max_epochs: ", value.scalar_text(),
                              ": max_steps is there too, and floe ends a run by one of them."));
  else
    target.page.set("train.epochs", value, comment);
}

void clip(const Value& value, const std::string& comment, Target& target) {
  const Value* algorithm = target.trainer.at("gradient_clip_algorithm");
  const std::string way =
      algorithm && !algorithm->is_null() ? lower(algorithm->scalar_text()) : "norm";
  if (way != "norm" && way != "value")
    refuse(*algorithm,
           str("gradient_clip_algorithm is ", algorithm->shown(), ", but must be norm or value"));
  const bool off = value.is_null() || config::integer_of(value) == 0;  // Lightning's 0 is no limit
  target.page.set("train.clip.norm", off || way == "value" ? Value() : value,
                  algorithm ? str(comment, " gradient_clip_algorithm: ", way, ".") : comment);
  if (!off && way == "value") target.page.set("train.clip.value", value, "");
}

void clip_algorithm(const Value&, const std::string& comment, Target& target) {
  if (!target.trainer.at("gradient_clip_val"))
    target.page.leave_out(comment + " There is no gradient_clip_val.");
}

void log_every(const Value& value, const std::string& comment, Target& target) {
  if (!value.is_null() && whole(value, "log_every_n_steps") > 0)
    target.page.set("log.every_steps", value, comment);
}

void started_ranks(const Value&, const std::string& comment, Target& target) {
  target.page.add_note(comment);
}

void read_elsewhere(const Value&, const std::string&, Target&) {}

void validation_batches(const Value& value, const std::string& comment, Target& target) {
  const double* share = value.as<double>();
  if (config::integer_of(value) == 0 || (share && *share == 0))
    target.page.set("train.validation.every_steps", Value(), comment);
  else if (config::integer_of(value))
    target.page.set("train.validation.max_batches", value, comment);
  else if (!value.is_null())
    target.page.leave_out(str("limit_val_batches: ", value.shown(),
                              ": train.validation.max_batches is a number of "
                              "batches, not a share."));
}

}  // namespace

const LightningBlock& trainer_block() {
  static const LightningBlock block{
      "`trainer`",
      "What is not in the file stays floe's own, because such files are put together from several; "
      "except for "
      "what would change the numbers: a trainer without `precision` computes in fp32, one without "
      "`gradient_clip_val` does not clip. A strategy alone says neither.",
      {
          {"precision", "precision.autocast, strategy.mixed_precision.param",
           "bf16-mixed and 16-mixed are autocast; without a mixed_precision of the strategy they "
           "also mean "
           "parameters in fp32, reduced in the narrow type under FSDP, as in Lightning. DeepSpeed "
           "computes and reduces in the narrow type, with fp32 masters.",
           precision},
          {"accumulate_grad_batches", "train.gradient_accumulation", "Batches in an update."},
          {"gradient_clip_val", "train.clip.norm, train.clip.value",
           "On the true global norm, under every strategy.", clip},
          {"gradient_clip_algorithm", "train.clip.norm, train.clip.value",
           "norm or value; under FSDP Lightning refuses norm.", clip_algorithm},
          {"max_steps", "train.steps", "Optimizer updates; -1 is without end.", max_steps},
          {"max_epochs", "train.epochs", "Epochs of num_samples; -1 is without end.", max_epochs},
          {"log_every_n_steps", "log.every_steps",
           "Steps between two lines; metrics.jsonl has every step.", log_every},
          {"limit_val_batches", "train.validation.max_batches, train.validation.every_steps",
           "Batches of each source, for a whole number; 0 is no validation: every_steps is null.",
           validation_batches},
          {"devices", "",
           "Ranks of a machine: floe launch -n, or torchrun and srun with num_nodes. A list of "
           "GPUs "
           "is CUDA_VISIBLE_DEVICES in front of the command.",
           started_ranks},
          {"num_nodes", "", "torchrun --nnodes or srun start the ranks of several machines.",
           started_ranks},
          {"strategy", "", "The block above.", read_elsewhere},
          {"logger", "",
           "WandbLogger is log.wandb; TensorBoard files and metrics.jsonl are always written.",
           read_elsewhere},
          {"callbacks", "", "Those below are known.", read_elsewhere},
          {"val_check_interval", "", "train.validation.every_steps, beside held-out shards."},
          {"check_val_every_n_epoch", "", "train.validation.every_steps, beside held-out shards."},
          {"num_sanity_val_steps", "",
           "Held-out shards are looked at before the first step: one usable sample is "
           "enough."},
          {"limit_train_batches", "", "num_samples of a source is the length of its epoch."},
          {"limit_test_batches", "", "Training only."},
          {"limit_predict_batches", "", "Training only."},
          {"overfit_batches", "", "data.batches trains on prepared batches again and again."},
          {"fast_dev_run", "",
           "train.steps=1 on the command line; floe plan checks without running."},
          {"min_epochs", "", "A run ends by train.steps, train.epochs or train.stop."},
          {"min_steps", "", "A run ends by train.steps, train.epochs or train.stop."},
          {"max_time", "",
           "Send SIGTERM: the run stops with a checkpoint, and the same command goes on."},
          {"enable_checkpointing", "", "checkpoint.every_steps: null saves only at the end."},
          {"enable_progress_bar", "", "A terminal has a progress line, a file has lines."},
          {"enable_model_summary", "", "floe plan, and log.diagnostics."},
          {"enable_autolog_hparams", "",
           "The whole configuration is kept in RUN/config.yaml and W&B."},
          {"deterministic", "",
           "Data and new weights are functions of the seed, always; kernels are torch's."},
          {"benchmark", "", "Pictures have one size, so there is nothing to search for."},
          {"inference_mode", "", "Validation keeps no graph."},
          {"use_distributed_sampler", "", "Shards are dealt to ranks by the loader."},
          {"profiler", "", "log.diagnostics.trace_steps writes a trace for Perfetto."},
          {"detect_anomaly", "",
           "A step that is not finite is skipped on all ranks, with its samples in "
           "skipped.jsonl."},
          {"barebones", "", "log.tensorboard: false and log.jsonl: false."},
          {"plugins", "", "There are none."},
          {"sync_batchnorm", "", "No model of floe has batch norms."},
          {"reload_dataloaders_every_n_epochs", "", "The loader is one for the whole run."},
          {"default_root_dir", "", "run.dir."},
          {"accelerator", "", "dist.device, which is auto."},
          {"model_registry", "", "floe export writes a model for others."},
      }};
  return block;
}

}  // namespace floe::migrate
