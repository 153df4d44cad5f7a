#include "floe/observe/sinks/log_config.h"

#include "floe/config/schema.h"

namespace floe {

void describe(config::Schema<WandbConfig>& s) {
  s.field("mode", &WandbConfig::mode,
          "disabled: none; offline: a run folder that `wandb sync` uploads; online: the same, and "
          "floe runs the installed `wandb sync` on it while it trains");
  s.field("project", &WandbConfig::project, "Project of the W&B run").not_empty();
  s.field("entity", &WandbConfig::entity, "Team or user of the W&B run; null: the uploader's own");
  s.field("checkpoints", &WandbConfig::checkpoints, "Put checkpoints into the W&B run");
}

void describe(config::Schema<DiagnosticsConfig>& s) {
  using C = DiagnosticsConfig;
  s.field("batches", &C::batches, "First batches whose memory is looked at point by point")
      .at_least(0);
  s.field("tree_top_k", &C::tree_top_k, "Units that are named in the summary of the tree")
      .at_least(1);
  s.field("to_loggers", &C::to_loggers, "Write the numbers to the loggers as well");
  s.field("trace_steps", &C::trace_steps,
          "First steps that are traced into RUN/trace for Perfetto; null: none")
      .at_least(1);
}

void describe(config::Schema<LogConfig>& s) {
  using C = LogConfig;
  s.field("every_steps", &C::every_steps, "Steps between two lines where there is no terminal")
      .at_least(1);
  s.field("tensorboard", &C::tensorboard, "Write TensorBoard event files");
  s.field("jsonl", &C::jsonl, "Write every step to metrics.jsonl");
  s.section("wandb", &C::wandb, "Weights & Biases; null: off");
  s.section("diagnostics", &C::diagnostics, "Strategy, unit tree, memory and dtypes; null: off");
  s.field("peak_tflops", &C::peak_tflops,
          "What the device can do in the dtype of computation, for MFU; null: known for some GPUs")
      .more_than(0);
}

}  // namespace floe
