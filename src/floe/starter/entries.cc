#include "floe/starter/entries.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "floe/config/load.h"
#include "floe/core/bytes.h"
#include "floe/data/shards/shard_list.h"

namespace floe::starter {
namespace {

// Rates that such trainings usually begin with.
constexpr double kFlamingoRate = 1e-4, kFullRate = 2e-5, kLoraRate = 2e-4;

config::Value number_value(std::int64_t number) { return config::Value(number); }

config::Value list_value(const std::vector<std::string>& texts) {
  config::List list;
  for (const std::string& text : texts) list.push_back(text_value(text));
  return config::Value(std::move(list));
}

// A path as the configuration has it: as it was given where that means the same from the file's
// folder, else absolute.
std::string written_path(const std::string& path, const std::string& output) {
  if (path.empty() || lies_here(output)) return path;
  return std::filesystem::absolute(path).lexically_normal().string();
}

std::string written_shards(const std::string& pattern, const std::string& output) {
  return lies_here(output) ? pattern : data::resolve_shards(pattern, "");
}

// "2.0e-5": a number to every reader of YAML, also to those of version 1.1.
std::string rate_text(double rate) {
  const int exponent = static_cast<int>(std::floor(std::log10(rate) + 1e-9));
  char text[32];
  std::snprintf(text, sizeof text, "%.1fe%d", rate / std::pow(10.0, exponent), exponent);
  return text;
}

std::string passes_text(double passes) {
  char text[48];
  if (std::abs(passes - 1) < 0.05) return "the data once";
  std::snprintf(text, sizeof text, passes < 1 ? "%.2f of the data" : "the data %.1f times", passes);
  return text;
}

std::int64_t gates_every(const ModelFacts& model) {
  const std::int64_t every = model.dim >= 4096 ? 4 : model.dim >= 2560 ? 2 : 1;
  return std::clamp<std::int64_t>(every, 1, std::max<std::int64_t>(1, model.layers));
}

class EntryWriter {
 public:
  EntryWriter(const Seen& seen, const Choices& chosen, const std::string& name)
      : options_(seen.options),
        model_(seen.model),
        data_(seen.data),
        machine_(seen.machine),
        chosen_(chosen),
        name_(name) {}

  std::vector<Entry> write() {
    add("run.name", text_value(name_),
        str("its files will be in runs/", name_,
            ". Started again, the same command goes on where it was."));
    for (Entry& entry : model_entries(options_, model_)) entries_.push_back(std::move(entry));
    add_lora();
    for (std::size_t i = 0; i < data_.size(); ++i) add_source(i);
    add_reading();
    add_training();
    add_strategy();
    const std::int64_t every = std::clamp<std::int64_t>(chosen_.steps / 4, 1, 1000);
    add("checkpoint.every_steps", number_value(every),
        "at the end of the run there is a save in any case.");
    add("log.every_steps", number_value(chosen_.steps < 200 ? 1 : 10));
    config::Map wandb;
    wandb["mode"] = text_value("offline");
    suggest("log.wandb", config::Value(std::move(wandb)),
            "TensorBoard's files and metrics.jsonl are written in any case.");
    return std::move(entries_);
  }

 private:
  void add(std::string key, config::Value value, std::string why = "") {
    entries_.push_back({std::move(key), std::move(value), std::move(why)});
  }
  void suggest(std::string key, config::Value value, std::string why) {
    entries_.push_back({std::move(key), std::move(value), std::move(why), true});
  }

  void add_lora() {
    const config::Value block = lora_block(model_);
    const std::string which = "queries and values of every layer's attention.";
    if (!chosen_.lora) {
      if (!model_.lora_targets.empty())
        suggest("model.lora", block,
                str("to train adapters ", model_.is_flamingo() ? "as well" : "instead of all of it",
                    ", on ", which));
      return;
    }
    add("model.lora.targets", *block.at("targets"),
        (chosen_.lora_by_need ? "adapters train, because all of the model would not fit; on "
                              : "on ") +
            which);
    add("model.lora.rank", *block.at("rank"));
    add("model.lora.alpha", *block.at("alpha"));
  }

  void add_source(std::size_t i) {
    const DataFacts& facts = data_[i];
    if (!facts.source) {
      add("data.batches", text_value(written_path(facts.pattern, options_.output)),
          facts.text() + ".");
      return;
    }
    const SourceChoice& choice = chosen_.sources[i];
    const data::SourceInfo& info = facts.source->info();
    const std::string block = "data." + facts.kind + ".";
    const std::string unit = info.counts_tokens ? "tokens" : "samples";
    add(block + info.files_key, text_value(written_shards(facts.pattern, options_.output)),
        facts.text() + "." +
            (facts.left_out().empty() ? ""
                                      : str(" Left out by the rules: ", facts.left_out(), ".")));
    add(block + (info.counts_tokens ? "tokens" : "batch_size"), number_value(choice.batch),
        batch_reason(facts, choice, unit));
    if (const auto most = max_tokens_of(facts.kind, model_))
      add(block + "max_tokens", number_value(*most),
          *most == model_.context
              ? str("the model has positions for ", model_.context, ".")
              : str("the longest of those that were looked at has ", facts.most_tokens, "."));
    if (facts.kind == "laion" || facts.kind == "mmc4") {
      const bool both = data_.size() > 1;
      add(block + "weight", config::Value(both && facts.kind == "laion" ? 0.2 : 1.0),
          both ? "OpenFlamingo weighs pairs 0.2 and documents 1." : "the only source.");
    }
    if (choice.per_epoch)
      add(block + info.per_epoch_key, number_value(*choice.per_epoch),
          str(counted(*chosen_.batches, "batch"), " of ", choice.batch, " on ",
              counted(chosen_.ranks, "rank"), ", which is ", passes_text(choice.passes),
              data_.size() > 1 ? "; all sources must have as many batches." : "."));
  }

  std::string batch_reason(const DataFacts& facts, const SourceChoice& choice,
                           const std::string& unit) const {
    if (!facts.unseen.empty()) return "a guess: the data could not be looked at.";
    if (choice.batch == choice.wanted)
      return chosen_.on_gpu ? "the usual size; it fits." : "small, because a processor is slow.";
    if (choice.batch == choice.capacity)
      return str("the data that one rank reads in a pass has about ", choice.capacity, " ", unit,
                 ", and that must fill a batch.");
    if (facts.source->info().counts_tokens && choice.batch == model_.context)
      return str("the model has positions for ", model_.context, " tokens.");
    return str("as many as fit into memory (", choice.wanted, " would be usual).");
  }

  void add_reading() {
    if (!data_.front().source) return;
    if (chosen_.resampled)
      add("data.resampled", config::Value(true),
          str("there are too few shards for each of the ", chosen_.ranks,
              " ranks to have its own; with several for each, every sample would be read once."));
    if (chosen_.workers > 1)
      add("data.workers", number_value(chosen_.workers), "so many commands run at a time.");
    add_damage();
    if (chosen_.threads)
      add("data.threads", number_value(*chosen_.threads),
          str(counted(machine_.cores, "core"), " for ", counted(chosen_.ranks, "rank"), "."));
  }

  // A run that would stop because of what was seen here is allowed twice as much.
  void add_damage() {
    double share = 0;
    std::string pattern;
    for (const DataFacts& facts : data_)
      if (facts.damaged_share() > share) {
        share = facts.damaged_share();
        pattern = facts.pattern;
      }
    const double usual = DataConfig().max_bad_fraction;
    if (share <= usual) return;
    const double allowed = std::min(1.0, std::ceil(2 * share * 100) / 100);
    add("data.max_bad_fraction", config::Value(allowed),
        str("of the samples or shards of ", pattern, " about ", std::llround(100 * share),
            "% are damaged or missing, so that a run would stop at the default of ", usual,
            ". Mend them if that is not as it should be; floe inspect shows which they are."));
  }

  void add_training() {
    if (chosen_.batches)
      add("train.epochs", number_value(chosen_.epochs),
          str(counted(chosen_.steps, "step"), " in all",
              chosen_.epochs > 1 ? "; one pass over so few teaches little." : "."));
    else
      add("train.steps", number_value(chosen_.steps),
          "a guess, because it is not known how many samples there are.");
    if (chosen_.accumulation > 1)
      add("train.gradient_accumulation", number_value(chosen_.accumulation),
          "so that an update sees as many samples as with batches of the usual size.");
    const double rate = chosen_.lora ? kLoraRate : model_.is_flamingo() ? kFlamingoRate : kFullRate;
    config::Value lr(rate);
    lr.spelling = rate_text(rate);
    add("train.optimizer.lr", lr,
        chosen_.lora           ? "usual for adapters."
        : model_.is_flamingo() ? "OpenFlamingo's."
                               : "usual for training all of a language model further.");
    if (chosen_.lora && !model_.is_flamingo())
      add("train.optimizer.weight_decay", config::Value(0.0), "adapters are small.");
    add("train.schedule.type", text_value("cosine"), "after a warm-up of 5% of the steps.");
    suggest("train.validation", validation_block(),
            "with shards that are in no pattern above. Names of shards are your own.");
  }

  config::Value validation_block() const {
    config::Map block, shards;
    block["every_steps"] = number_value(std::clamp<std::int64_t>(chosen_.steps / 4, 1, 1000));
    if (!data_.front().source) {
      block["batches"] = text_value("held-out.safetensors");
      return config::Value(std::move(block));
    }
    for (const DataFacts& facts : data_)
      shards[facts.kind] =
          text_value(facts.source->info().has_images ? str("held-out/", facts.kind, "-*.tar")
                                                     : str("held-out/", facts.kind, "-*.jsonl"));
    block["shards"] = config::Value(std::move(shards));
    return config::Value(std::move(block));
  }

  void add_strategy() {
    using enum shard::Strategy;
    const Need& need = chosen_.need;
    const std::string needs =
        str("a rank needs about ", format_bytes(need.all()), " of ",
            format_bytes(std::max<std::int64_t>(0, need.available)), " (model ",
            format_bytes(need.model), ", a batch about ", format_bytes(need.activations),
            need.copies > 0 ? str(", a save ", format_bytes(need.copies)) : "", ").");
    std::string why;
    switch (chosen_.sharding) {
      case no_shard:
        why = chosen_.ranks == 1 ? "one rank alone; "
                                 : "every rank has room for a copy, which moves fewest bytes; ";
        break;
      case shard_grad_op:
        why = "copies on every rank would not fit, this moves least of what does; ";
        break;
      default: why = "least memory on a rank; "; break;
    }
    if (!chosen_.does_not_fit.empty()) why = str("DOES NOT FIT: ", chosen_.does_not_fit, ". ");
    add("strategy.sharding", text_value(std::string(shard::name_of(chosen_.sharding))),
        why + needs);
    if (!chosen_.recompute.empty())
      add("strategy.activation_checkpointing", list_value(chosen_.recompute),
          "activations would not fit otherwise, or only with tiny batches.");
    else
      suggest("strategy.activation_checkpointing", list_value(chosen_.could_recompute),
              "off. It saves memory where batches shall be larger, and costs a third more time.");
    if (chosen_.offload)
      add("strategy.cpu_offload", config::Value(true),
          str("the GPUs alone would not hold it; ", format_bytes(chosen_.need.host),
              " of each rank lie in host memory, with the copies that a save takes."));
    add("strategy.mixed_precision.param", text_value(std::string(name_of(chosen_.dtype))),
        chosen_.on_gpu ? "what GPUs compute fast. What trains is kept in fp32 beside it."
        : chosen_.dtype == DType::f32 ? "a processor computes in fp32."
                                      : "half of the memory of fp32, which would not fit.");
  }

  const StarterOptions& options_;
  const ModelFacts& model_;
  const std::vector<DataFacts>& data_;
  const Machine& machine_;
  const Choices& chosen_;
  const std::string& name_;
  std::vector<Entry> entries_;
};

}  // namespace

config::Value text_value(const std::string& text) {
  config::Value value(text);
  config::escape_references(value);
  return value;
}

bool lies_here(const std::string& output) {
  if (output == "-") return true;
  std::error_code failed;
  const std::filesystem::path folder =
      std::filesystem::absolute(output, failed).lexically_normal().parent_path();
  const std::filesystem::path here = std::filesystem::current_path(failed);
  return folder == here || std::filesystem::equivalent(folder, here, failed);
}

std::optional<std::int64_t> max_tokens_of(const std::string& kind, const ModelFacts& model) {
  if (kind == "instruct" && model.context > 0) return std::min<std::int64_t>(2048, model.context);
  if (kind == "mmc4" && model.context > 0 && model.context < 256) return model.context;
  return std::nullopt;
}

std::vector<Entry> model_entries(const StarterOptions& options, const ModelFacts& model) {
  const auto in_file = [&](const std::string& path) {
    return text_value(written_path(path, options.output));
  };
  std::vector<Entry> entries;
  entries.push_back({"model.type", text_value(std::string(config::enum_name(model.type))),
                     model.is_flamingo() ? "a Flamingo, because --vision names an image tower."
                     : model.type == models::ModelConfig::Type::causal_lm
                         ? "a language model alone; with --vision it would be a Flamingo."
                         : str("a ", model.family, " fills in masked tokens.")});
  entries.push_back({"model.lm", in_file(options.model), model.text() + "."});
  if (!options.tokenizer.empty())
    entries.push_back({"model.tokenizer", in_file(options.tokenizer), ""});
  if (!model.is_flamingo()) return entries;
  entries.push_back({"model.vision", in_file(options.vision), model.tower + "."});
  entries.push_back({"model.cross_attn_every_n_layers", number_value(gates_every(model)),
                     str("for a width of ", model.dim,
                         ". OpenFlamingo's 3B (width 2048) has 1, its 4B (2560) 2, its 9B (4096) "
                         "4. More layers see pictures with 1; fewer parameters train with 4.")});
  return entries;
}

std::vector<Entry> all_entries(const Seen& seen, const Choices& chosen, const std::string& name) {
  return EntryWriter(seen, chosen, name).write();
}

}  // namespace floe::starter
