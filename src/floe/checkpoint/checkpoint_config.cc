#include "floe/checkpoint/checkpoint_config.h"

#include "floe/schema/schema.h"

namespace floe {

void describe(config::Schema<KeepBestConfig>& s) {
  using C = KeepBestConfig;
  s.field("metric", &C::metric,
          "Name of the metric that ranks checkpoints: val_loss, val_loss_SOURCE, "
          "val_perplexity_SOURCE, val_TASK_METRIC (saves at steps with a validation) or "
          "loss_SOURCE");
  s.field("n", &C::n, "How many of the best stay, beside the newest").at_least(0);
  s.field("better", &C::better, "Which way the metric is better");
  s.check("metric", [](const C& c) -> std::string {
    return c.n > 0 && !c.metric
               ? str("is not set, but n is ", c.n, "; name the metric, or set n to 0")
               : "";
  });
  s.check("n", [](const C& c) -> std::string {
    return c.n == 0 && c.metric ? str("is 0, so nothing stays because of ", *c.metric,
                                      "; set n to 1 or more, or remove the metric")
                                : "";
  });
}

void describe(config::Schema<CheckpointConfig>& s) {
  using C = CheckpointConfig;
  s.field("every_steps", &C::every_steps, "Save after every so many optimizer updates; null: never")
      .at_least(1);
  s.field("every_epochs", &C::every_epochs, "Save at the end of every so many epochs; null: never")
      .at_least(1);
  s.field("keep", &C::keep, "How many of the newest checkpoints stay; null: all").at_least(1);
  s.section("keep_best", &C::keep_best, "Checkpoints that stay because of a metric");
  s.field("delete_previous_checkpoint", &C::delete_previous_checkpoint,
          "Only the newest checkpoint stays, as with keep: 1");
  s.field("state_dict_type", &C::state_dict_type,
          "sharded: a directory of torch.distributed.checkpoint; full: one file with everything; "
          "trainable: checkpoint_N.pt in OpenFlamingo's layout");
  s.field("content", &C::content,
          "trainable: parameters that train, with the frozen base named and checked; full: all");
  s.field("async", &C::async, "Write behind the training, from copies in host memory");
  s.field("on_exception", &C::on_exception, "Save what can be saved when a rank fails");
  s.field("on_failure", &C::on_failure,
          "What a failed save (a full disk) means: stop ends the run, continue goes on training");
  s.check("keep", [](const C& c) -> std::string {
    if (!c.delete_previous_checkpoint || c.keep == 1 || c.keep == C().keep) return "";
    return str("is ", c.keep ? std::to_string(*c.keep) : "null, which keeps all",
               ", but delete_previous_checkpoint leaves only the newest; remove one of the two");
  });
}

}  // namespace floe
