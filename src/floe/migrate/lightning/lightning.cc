#include "floe/migrate/lightning/lightning.h"

#include <functional>

#include "floe/core/names.h"
#include "floe/migrate/lightning/keys.h"
#include "floe/migrate/lightning/reading.h"
#include "floe/schema/codec.h"
#include "floe/schema/yaml_text.h"

namespace floe::migrate {
namespace {

using config::List;
using config::Map;
using config::Value;

class LightningTranslation {
 public:
  explicit LightningTranslation(Value file) : file_(std::move(file)) {
    const Map& map = *file_.as<Map>();
    if (const Value* trainer = map.find("trainer")) {
      if (trainer->as<Map>())
        target_.trainer = Value(arguments_of(*trainer), trainer->origin);
      else if (!trainer->is_null())
        refuse(*trainer, str("trainer must be a block, not ", trainer->shown()));
    }
    if (!target_.trainer.as<Map>()) target_.trainer.data = Map();
  }

  Page take() {
    const Value trainer = target_.trainer;  // callbacks put their own block in its place
    const Value* strategy = trainer.at("strategy");
    if (strategy && !is_reference(*strategy)) read_strategy(*strategy);
    read_block(trainer_block(), *trainer.as<Map>(), "trainer");
    numbers_as_in_lightning(trainer, strategy);
    if (const Value* logger = trainer.at("logger"))
      each_object(*logger, [&](const Value& v) { read_logger(v); });
    for (const Value* callbacks : {trainer.at("callbacks"), file_.at("callbacks")})
      if (callbacks) each_object(*callbacks, [&](const Value& v) { read_callback(v); });
    if (const Value* logger = file_.at("logger"))
      each_object(*logger, [&](const Value& v) { read_logger(v); });
    rest();
    command(trainer);
    return std::move(target_.page);
  }

 private:
  // Every key of the block: translated, or said to have no counterpart.
  void read_block(const LightningBlock& block, const Map& map, const std::string& path) {
    std::vector<std::string> names;
    for (const LightningKey& row : block.keys) names.emplace_back(row.name);
    // In the order of the table, in which what others look at comes first.
    for (const LightningKey& row : block.keys) {
      const Value* value = map.find(row.name);
      if (!value) continue;
      const std::string comment = str(row.name, ": ", shown(*value), ". ", row.remark);
      // What is inside callbacks and loggers is looked at there.
      if (is_reference(*value) || (&block == &strategy_block() && has_reference(*value))) {
        const std::string text = is_reference(*value) ? value->scalar_text() : shown(*value);
        target_.page.leave_out(str(path, ".", row.name, ": ", text,
                                   " is a reference that this file does not resolve; write "
                                   "its value."));
        target_.page.warn(
            str(path, ".", row.name, " is ", text, ", which this file does not resolve; left out"));
      } else if (row.apply) {
        row.apply(*value, comment, target_);
      } else if (!row.keys.empty()) {
        if (!value->is_null()) target_.page.set(row.keys, *value, comment);
      } else {
        target_.page.leave_out(comment);
      }
    }
    for (const auto& [key, value] : map) {
      if (knows(block, key)) continue;
      const std::string sentence = str(path, ".", key, " is no key that floe migrate knows",
                                       did_you_mean(key, names), "; left out");
      target_.page.leave_out(sentence + ".");
      target_.page.warn(sentence);
    }
  }

  static std::string shown(const Value& value) {
    const std::string text = config::write_inline_yaml(value);
    constexpr std::size_t kMost = 80;
    return text.size() <= kMost ? text : text.substr(0, kMost) + " …";
  }

  void read_strategy(const Value& value) {
    Page& page = target_.page;
    if (value.is_null()) return;
    const auto sharding = [&](const char* name) {
      page.set("strategy.sharding", Value(std::string(name), value.origin),
               str("strategy: ", class_of(value).empty() ? shown(value) : class_of(value), "."));
    };
    if (const auto* word = value.as<std::string>()) {
      target_.strategy.data = Map();
      if (word->starts_with("fsdp")) {
        sharding("full_shard");
        if (word->find("cpu_offload") != std::string::npos)
          page.set("strategy.cpu_offload", Value(true, value.origin), "");
      } else if (word->starts_with("ddp")) {
        sharding("no_shard");
      } else if (word->starts_with("deepspeed")) {
        target_.is_deepspeed = true;
        sharding(word->find('3') != std::string::npos ? "full_shard" : "shard_grad_op");
        if (word->find("offload") != std::string::npos)
          page.set("strategy.cpu_offload", Value(true, value.origin), "");
      } else if (*word != "auto" && *word != "single_device") {
        refuse(value, str("strategy is ", value.shown(),
                          ", which floe migrate does not know; it knows fsdp, "
                          "fsdp_cpu_offload, ddp, deepspeed_stage_2, deepspeed_stage_3, "
                          "single_device and auto"));
      } else {
        page.leave_out(str("strategy: ", *word, ": floe trains on as many ranks as are started."));
      }
      return;
    }
    if (!value.as<Map>())
      refuse(value, str("strategy must be a block or a word, not ", value.shown()));
    const std::string name = last_part(class_of(value));
    target_.strategy = Value(arguments_of(value), value.origin);
    target_.is_deepspeed = name == "DeepSpeedStrategy";
    if (name == "DDPStrategy")
      sharding("no_shard");
    else if (name == "FSDPStrategy" || name == "ModelParallelStrategy" ||
             name == "DeepSpeedStrategy")
      sharding(name == "DeepSpeedStrategy" ? "shard_grad_op" : "full_shard");
    else if (!name.empty() && name != "SingleDeviceStrategy")
      refuse(value, str("the strategy is ", class_of(value),
                        ", which floe migrate does not know; it knows FSDPStrategy, DDPStrategy, "
                        "ModelParallelStrategy and DeepSpeedStrategy"));
    read_block(strategy_block(), *target_.strategy.as<Map>(), "strategy");
  }

  void numbers_as_in_lightning(const Value& trainer, const Value* strategy) {
    Page& page = target_.page;
    const bool whole_trainer =
        known_keys(trainer_block(), *trainer.as<Map>()) > (strategy ? 1U : 0U);
    const Value* precision = trainer.at("precision");
    if (page.has("strategy.mixed_precision")) {
      // The types are known.
    } else if (types_are_unresolved(target_) || (precision && is_reference(*precision))) {
      const std::string sentence =
          str("strategy.mixed_precision is not written, because ",
              types_are_unresolved(target_) ? "that of the strategy" : "precision",
              " is a reference here: write it, or floe's own types stay (parameters in bf16)");
      page.leave_out(sentence + ".");
      page.warn(sentence);
    } else if (whole_trainer) {
      const Value fp32(std::string("fp32"));
      page.set("strategy.mixed_precision.param", fp32,
               "Neither precision nor mixed_precision is here: Lightning computes in fp32, floe's "
               "default is bf16.");
      page.set("strategy.mixed_precision.reduce", fp32, "");
      page.set("strategy.mixed_precision.buffer", fp32, "");
    }
    if (whole_trainer && !trainer.at("gradient_clip_val"))
      page.set("train.clip.norm", Value(),
               "gradient_clip_val is not here: Lightning does not clip, floe's default "
               "is 1.");
  }

  // Callbacks and loggers stand in a list, under names, or alone.
  static void each_object(const Value& value, const std::function<void(const Value&)>& read) {
    if (const auto* list = value.as<List>()) {
      for (const Value& item : *list) read(item);
    } else if (const auto* map = value.as<Map>(); map && class_of(value).empty()) {
      for (const auto& [name, item] : *map) read(item);
    } else if (!value.is_null()) {
      read(value);
    }
  }

  // The rows of a callback find its own arguments where a trainer's would be.
  void read_object(const LightningBlock& block, const Value& value, const std::string& name) {
    target_.trainer = Value(arguments_of(value), value.origin);
    read_block(block, *target_.trainer.as<Map>(), name);
  }

  void read_callback(const Value& value) {
    const std::string name = last_part(class_of(value));
    Page& page = target_.page;
    if (value.is_null()) return;
    if (name == "ModelCheckpoint") {
      read_object(checkpoint_block(), value, name);
    } else if (name == "EarlyStopping") {
      read_early_stop(value);
    } else if (name == "FSDPDiagnosticsCallback") {
      page.set("log.diagnostics", Value(Map()), str(name, "."));
      read_object(diagnostics_block(), value, name);
    } else if (name == "OnExceptionCheckpoint") {
      page.set("checkpoint.on_exception", Value(true, value.origin),
               str(name, ": each rank leaves its slices without talking to the others."));
    } else if (name == "LearningRateMonitor" || name.ends_with("ProgressBar") ||
               name == "ModelSummary") {
      page.leave_out(str(name, ": floe logs it anyway."));
    } else {
      const std::string sentence =
          str("the callback ", name.empty() ? shown(value) : name, " has no counterpart; left out");
      page.leave_out(sentence + ".");
      page.warn(sentence);
    }
  }

  void read_early_stop(const Value& value) {
    Page& page = target_.page;
    const Value arguments(arguments_of(value), value.origin);
    const std::string obstacle = obstacle_to_stop(arguments);
    if (obstacle.empty()) {
      read_object(early_stop_block(), value, "EarlyStopping");
      page.warn("train.stop needs validation: set train.validation.every_steps and its shards");
      return;
    }
    const std::string sentence =
        str("EarlyStopping ", shown(arguments), ": ", obstacle, "; train.stop is left out");
    page.leave_out(sentence + ".");
    page.warn(sentence);
  }

  void read_logger(const Value& value) {
    const std::string name = last_part(class_of(value));
    Page& page = target_.page;
    if (name == "WandbLogger") {
      if (!arguments_of(value).find("offline"))
        page.set("log.wandb.mode", Value(std::string("online"), value.origin), "WandbLogger.");
      read_object(wandb_block(), value, name);
    } else if (name == "TensorBoardLogger" || name == "CSVLogger" || value.as<bool>() ||
               value.is_null()) {
      page.leave_out(str("logger ", name.empty() ? shown(value) : name,
                         ": TensorBoard files and metrics.jsonl are written unless log.tensorboard "
                         "and log.jsonl are "
                         "false."));
    } else {
      const std::string sentence =
          str("the logger ", name.empty() ? shown(value) : name, " has no counterpart; left out");
      page.leave_out(sentence + ".");
      page.warn(sentence);
    }
  }

  // What else a whole configuration has.
  void rest() {
    std::vector<std::string> others;
    for (const auto& [key, value] : *file_.as<Map>()) {
      if (key == "trainer" || key == "callbacks" || key == "logger") continue;
      if (key == "seed_everything" || key == "seed")
        read_seed(key, value);
      else
        others.push_back(key);
    }
    if (!others.empty())
      target_.page.leave_out(str(join(others),
                                 ": what a run trains, and on what, are the blocks model, data and "
                                 "train.optimizer of floe."));
  }

  void read_seed(const std::string& key, const Value& value) {
    Page& page = target_.page;
    const std::string line =
        str(key, ": ", is_reference(value) ? value.scalar_text() : shown(value));
    if (config::integer_of(value)) {
      page.set("run.seed", value, str(key, ": of everything random."));
    } else if (value.is_null() || (value.as<bool>() && !*value.as<bool>())) {
      page.leave_out(str(line, ": floe always has a seed; run.seed is 0 unless it is set."));
    } else if (value.as<bool>()) {
      page.leave_out(str(line,
                         ": Lightning chooses the seed itself, floe does not: run.seed is 0 unless "
                         "it is set."));
    } else {
      const std::string sentence =
          str(line,
              is_reference(value) ? " is a reference that this file does not resolve"
                                  : " is no whole number",
              "; run.seed is 0 unless it is set");
      page.leave_out(sentence + ".");
      page.warn(sentence);
    }
  }

  void command(const Value& trainer) {
    const Value* devices = trainer.at("devices");
    const Value* nodes = trainer.at("num_nodes");
    const auto machines = nodes ? config::integer_of(*nodes) : std::optional<std::int64_t>(1);
    const std::optional<std::int64_t> ranks = devices ? ranks_of_machine(*devices) : std::nullopt;
    Page& page = target_.page;
    page.set_others("mine.yaml ");
    page.add_note(
        "mine.yaml is yours: the blocks model and data, and train.steps or train.epochs where they "
        "are not "
        "here (floe init writes one).");
    if (ranks && *ranks > 0 && machines && *machines >= 1) {
      page.set_world(static_cast<int>(*ranks * *machines));
      // Rank i takes GPU i of those that it sees.
      const std::vector<std::int64_t> chosen = chosen_gpus(*devices);
      const std::string visible =
          chosen.empty() ? "" : str("CUDA_VISIBLE_DEVICES=", join(chosen, ","), " ");
      if (!chosen.empty())
        page.add_note(str("devices: ", shown(*devices), ": ", chosen.size() == 1 ? "GPU " : "GPUs ",
                          join(chosen, " and "), chosen.size() == 1 ? " was" : " were", " chosen. ",
                          visible, "in front of the command chooses ",
                          chosen.size() == 1 ? "it." : "them."));
      page.set_command(visible + "floe train ");
      if (*machines == 1 && *ranks > 1)
        page.set_command(str(visible, "floe launch -n ", *ranks, " -- train "));
      if (*machines > 1)
        page.set_command(str(visible, "torchrun --nnodes ", *machines, " --nproc-per-node ", *ranks,
                             " --no-python floe train "));
    } else {
      page.add_note(
          "devices: the file does not say how many ranks there are; floe launch -n N -- train "
          "starts N.");
    }
  }

  Value file_;
  Target target_{Page("From a configuration of Lightning, by floe migrate."), {}, {}};
};

}  // namespace

Page from_lightning(const std::vector<std::string>& files) {
  Value all{Map()};
  for (const std::string& file : files) config::merge(all, read_lightning(file));
  return LightningTranslation(std::move(all)).take();
}

std::string lightning_reference() {
  std::string out;
  for (const LightningBlock* block : {&strategy_block(), &trainer_block(), &checkpoint_block(),
                                      &early_stop_block(), &diagnostics_block(), &wandb_block()}) {
    out += str(out.empty() ? "" : "\n", "### ", block->title, "\n", block->intro,
               block->intro.empty() ? "" : "\n\n",
               "| key | floe | what floe does |\n| --- | --- | --- |\n");
    for (const LightningKey& row : block->keys) {
      std::string keys = row.keys.empty() ? "none" : "`" + std::string(row.keys) + "`";
      for (auto at = keys.find(", "); at != std::string::npos; at = keys.find(", ", at + 4))
        keys.replace(at, 2, "`, `");
      out += str("| `", row.name, "` | ", keys, " | ", row.remark, " |\n");
    }
  }
  return out;
}

}  // namespace floe::migrate
