#include "floe/train/train_config.h"

#include <algorithm>
#include <cctype>

#include "floe/schema/schema.h"

namespace floe {

bool config::Codec<train::ShardsBySource>::read(const Value& value, train::ShardsBySource& out,
                                                const Place& place) {
  out.by_source.clear();
  if (value.is_null()) return true;
  if (value.as<Map>())
    return Codec<std::map<std::string, std::string>>::read(value, out.by_source, place);
  if (value.as<List>()) return place.fail(value, "must be ", type().one, ", not ", value.shown());
  return Codec<std::string>::read(value, out.by_source[""], place);
}

config::Value config::Codec<train::ShardsBySource>::write(const train::ShardsBySource& shards,
                                                          Write mode) {
  if (shards.by_source.empty()) return Value();
  if (const auto only = shards.by_source.find(""); only != shards.by_source.end())
    return Value(only->second);
  return Codec<std::map<std::string, std::string>>::write(shards.by_source, mode);
}

namespace train {

bool is_metric_name(const std::string& name) {
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c < 128 && std::isalnum(c)) || c == '_' || c == '-' || c == '.';
  });
}

std::string ShardsBySource::of(const std::string& source, std::size_t num_sources) const {
  if (const auto found = by_source.find(source); found != by_source.end()) return found->second;
  const auto only = by_source.find("");
  return only != by_source.end() && num_sources == 1 ? only->second : "";
}

bool higher_is_better(const std::string& metric) {
  if (!metric.starts_with("val_")) return false;
  return metric.ends_with("_accuracy") || metric.ends_with("_cider") ||
         metric.ends_with("_roc_auc");
}

void describe(config::Schema<ValidationTask>& s) {
  using C = ValidationTask;
  s.field("file", &C::file, "The task's YAML, as floe eval takes it").not_empty().required();
  s.field("name", &C::name,
          "What its metric is called by: val_NAME_METRIC (default: the task's name)")
      .rule("of letters, digits, '_', '-' and '.'", "consist of letters, digits, '_', '-' and '.'",
            is_metric_name);
  s.field("samples", &C::samples,
          "How many test samples are asked, drawn by the seed: the same ones at every validation "
          "(0: all)")
      .at_least(0);
  s.field("shots", &C::shots, "Samples of the context; null: the first number of the task's")
      .at_least(0);
  s.field("seed", &C::seed, "Of the draws; null: the first of the task's")
      .at_least(0)
      .at_most(4294967295.0);
}

void describe(config::Schema<ValidationConfig>& s) {
  using C = ValidationConfig;
  s.field("every_steps", &C::every_steps, "Steps between two validations; null: none").at_least(1);
  s.field("shards", &C::shards,
          "Held-out shards, by source ({laion: …, mmc4: …}) or of the only source");
  s.field("batches", &C::batches, "A safetensors file of held-out prepared batches instead");
  s.field("max_batches", &C::max_batches,
          "Batches of each source that a rank looks at; null: all there are")
      .at_least(1);
  s.field("tasks", &C::tasks,
          "Tasks of floe eval that are asked on all ranks, a fixed part of each; scores are logged "
          "as val_NAME_METRIC");
  s.field("task_batch_tokens", &C::task_batch_tokens,
          "At most so many tokens of a batch of tasks, as --batch-tokens of floe eval")
      .at_least(1);
  s.check("every_steps", [](const C& c) {
    if (c.every_steps && !c.holds_data_out() && c.tasks.empty())
      return "is set, but nothing is held out; set shards, batches or tasks beside it";
    if (!c.every_steps && c.holds_data_out())
      return "is not set, so the held-out data would never be looked at; set it, or remove shards "
             "and batches";
    if (!c.every_steps && !c.tasks.empty())
      return "is not set, so the tasks would never be asked; set it, or remove tasks";
    return "";
  });
  s.check("batches", [](const C& c) {
    return c.batches && !c.shards.by_source.empty() ? "and shards are both set; keep one of them"
                                                    : "";
  });
}

void describe(config::Schema<UntilConfig>& s) {
  using C = UntilConfig;
  s.field("metric", &C::metric,
          "What validation measures: val_loss, that of a source, or the score of a task")
      .not_empty();
  s.field("patience", &C::patience,
          "Validations in a row that end it because it did not get better: fall, or rise where it "
          "is a score")
      .at_least(1);
  s.field("min_delta", &C::min_delta, "By more than that it has to get better to count")
      .at_least(0);
}

void describe(config::Schema<PhaseConfig>& s) {
  using C = PhaseConfig;
  s.field("name", &C::name, "What the phase is called in logs and checkpoints")
      .not_empty()
      .rule("of letters, digits, '_' and '-'", "consist of letters, digits, '_' and '-'",
            [](const std::string& name) {
              return std::all_of(name.begin(), name.end(), [](unsigned char c) {
                return (c < 128 && std::isalnum(c)) || c == '_' || c == '-';
              });
            })
      .required();
  s.field("train", &C::train, "Patterns of the parameters that train").not_empty().required();
  s.field("steps", &C::steps, "Optimizer updates of a turn; null: by until, or up to the run's end")
      .at_least(1);
  s.field("until", &C::until, "Ends a turn, before its steps are done if those are set");
  s.field("lr", &C::lr, "Learning rate; null: that of train.optimizer").more_than(0);
  s.field("weight_decay", &C::weight_decay, "Decay; null: that of train.optimizer").at_least(0);
  s.field("schedule", &C::schedule,
          "The learning rate over the set's own updates; null: train.schedule, over the run's");
  s.field("optimizer_state", &C::optimizer_state,
          "What becomes of the set's optimizer state while it rests");
}

int passes_per_update(const TrainConfig& train, std::size_t num_sources) {
  const auto passes =
      train.packed ? 1 : std::max<std::int64_t>(1, static_cast<std::int64_t>(num_sources));
  // More than anybody can run; products of such numbers stay inside their type.
  constexpr std::int64_t kMost = 1'000'000;
  return static_cast<int>(std::min(kMost, std::min(kMost, train.gradient_accumulation) * passes));
}

void describe(config::Schema<TrainConfig>& s) {
  using C = TrainConfig;
  s.field("steps", &C::steps, "Number of optimizer updates; null: by epochs").at_least(1);
  s.field("epochs", &C::epochs, "Number of epochs; null: by steps").at_least(1);
  s.field("trainable", &C::trainable, "Patterns of what trains; null: the model's own rule");
  s.field("cycle_phases", &C::cycle_phases,
          "Phases take turns until the run ends; false: each has one turn");
  s.field("packed", &C::packed,
          "All sources of a step in one pass; false: one after the other, as OpenFlamingo does");
  s.field("gradient_accumulation", &C::gradient_accumulation, "Batches of each source per update")
      .at_least(1);
  s.field("loss_mean", &C::loss_mean,
          "per_rank: mean over a rank's labelled tokens, then over ranks; global: over all tokens");
  s.field("max_skipped", &C::max_skipped,
          "Updates in a row that may be skipped for a loss or gradient that is not finite")
      .at_least(0);
  s.section("clip", &C::clip, "Limits on gradients");
  s.section("optimizer", &C::optimizer, "What updates parameters");
  s.section("schedule", &C::schedule, "The learning rate over steps");
  s.section("ema", &C::ema, "An average of the trained weights");
  s.section("validation", &C::validation, "Loss on held-out data, and tasks of floe eval");
  s.section("stop", &C::stop, "Ends the run when validation no longer gets better; null: never");
  s.check("steps", [](const C& c) {
    return c.steps && c.epochs ? "and train.epochs are both set; keep one" : "";
  });
}

}  // namespace train
}  // namespace floe
