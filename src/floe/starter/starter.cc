#include "floe/starter/starter.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/starter/entries.h"
#include "floe/train/run_config.h"

namespace floe::starter {
namespace {

namespace fs = std::filesystem;

// A word for the shell.
std::string shell_quoted(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=+@%,";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// The name of the file without its ending, free among the runs here.
std::string run_name(const std::string& output) {
  std::string name = output == "-" ? "train" : fs::path(output).stem().string();
  std::error_code ignored;
  std::string free = name;
  for (int number = 2; fs::exists(fs::path("runs") / free, ignored); ++number)
    free = str(name, "-", number);
  return free;
}

class StarterWriter {
 public:
  explicit StarterWriter(const StarterOptions& options) : options_(options) {}

  Starter make() {
    check_words();
    model_ = look_at_model({options_.model, options_.vision, options_.tokenizer});
    look_at_all_data();
    machine_ = look_at_machine();
    const config::Value block = tree_of(model_entries(options_, model_));
    chosen_ = choose(model_, *block.at("model"), data_, machine_, options_.wishes);
    name_ = run_name(options_.output);

    Starter starter;
    const std::vector<Entry> entries =
        all_entries({options_, model_, data_, machine_}, chosen_, name_);
    starter.next = commands();
    starter.summary = summary();
    starter.warnings = warnings();
    starter.yaml = commented_yaml(head(starter), entries, config::fields_of<train::RunConfig>());
    // What is written is what floe train reads.
    const config::Value tree = config::parse_yaml(starter.yaml, options_.output);
    const train::RunConfig config = config::load<train::RunConfig>(tree).config;
    (void)batches_per_epoch(config.data, chosen_.ranks);
    return starter;
  }

 private:
  void check_words() const {
    const auto utf8 = [](const char* what, const std::string& text) {
      require<ConfigError>(is_utf8(text), "init: ", what, " '", shown_bytes(text),
                           "' is not UTF-8, as a configuration has to be; rename it");
    };
    utf8("MODEL", options_.model);
    utf8("--vision", options_.vision);
    utf8("--tokenizer", options_.tokenizer);
    utf8("--output", options_.output);
    for (const std::string& word : options_.data) utf8("--data", word);
    std::error_code failed;
    if (!lies_here(options_.output))
      utf8("the working directory", fs::current_path(failed).string());
  }

  // ---- data ----

  // Several patterns of one kind are one source.
  void look_at_all_data() {
    std::map<std::string, std::vector<std::string>> patterns;
    for (const std::string& word : options_.data) {
      DataWord parsed = parse_data_word(word);
      if (parsed.kind.empty()) parsed.kind = kind_of_data(parsed.pattern);
      patterns[parsed.kind].push_back(parsed.pattern);
    }
    if (const auto batches = patterns.find("batches"); batches != patterns.end()) {
      require<ConfigError>(patterns.size() == 1 && batches->second.size() == 1,
                           "init: a file of prepared batches holds every source; give it alone");
      data_.push_back(look_at_batches(batches->second.front()));
      check_batches(data_.front());
      return;
    }
    for (const auto& [kind, texts] : patterns) check_kind(kind, texts.front());
    for (const auto& source : data::data_sources()) {
      const auto found = patterns.find(source->id());
      if (found == patterns.end()) continue;
      const std::string pattern = join(found->second, "::");
      data_.push_back(look_at_data(source->id(), pattern, source_block(*source, pattern),
                                   {model_.tokenizer.get(), model_.tokens, model_.image_size}));
      check_ids(data_.back());
    }
  }

  void check_batches(const DataFacts& facts) const {
    require<ConfigError>(!facts.with_images || model_.is_flamingo(), "init: '", facts.pattern,
                         "' has batches of ", join(facts.sources, " and "),
                         ", which a Flamingo learns from; name its image tower with --vision");
    require<ConfigError>(facts.with_images || !model_.is_flamingo(), "init: '", facts.pattern,
                         "' has batches of ", join(facts.sources, " and "),
                         ", which a Flamingo is not trained on; leave out --vision");
    require<ConfigError>(!model_.is_flamingo() || model_.tokenizer, "init: ", no_tokenizer());
  }

  void check_kind(const std::string& kind, const std::string& pattern) const {
    const data::DataSource& source = *data::find_source(kind);
    require<ConfigError>(model_.type != models::ModelConfig::Type::from_config, "init: a '",
                         model_.family, "' learns masked tokens, and '", pattern,
                         "' is text to be continued; prepare batches with their labels "
                         "(docs/data.md) and name them with --data FILE.safetensors");
    require<ConfigError>(!source.info().has_images || model_.is_flamingo(), "init: '", pattern,
                         "' has pictures with text (", kind,
                         "), which a Flamingo learns from; name its image tower with --vision");
    require<ConfigError>(source.info().has_images || !model_.is_flamingo(), "init: '", pattern,
                         "' has text without pictures (", kind,
                         "), which a Flamingo is not trained on; leave out --vision, or name tars "
                         "of pictures with captions or of MMC4 documents");
    require<ConfigError>(model_.tokenizer != nullptr, "init: ", no_tokenizer());
  }

  std::string no_tokenizer() const {
    return str("'", options_.model,
               "' has no tokenizer (tokenizer.json, tokenizer.model, or vocab.json with "
               "merges.txt); name its folder with --tokenizer DIR");
  }

  // A Flamingo's table grows with its tokenizer; that of a language model does not. Captions are
  // the only samples that no key can make shorter.
  void check_ids(const DataFacts& facts) const {
    require<ConfigError>(model_.is_flamingo() || facts.highest_id < model_.vocab,
                         "init: the tokenizer gives the token ", facts.highest_id, ", but '",
                         options_.model, "' has a vocabulary of ", model_.vocab,
                         "; it is of another model: name the right one with --tokenizer DIR");
    require<ConfigError>(
        facts.kind != "laion" || !model_.learned_positions || facts.most_tokens <= model_.context,
        "init: '", options_.model, "' has positions for ", model_.context, " tokens, and '",
        facts.pattern, "' has captions of ", facts.most_tokens,
        "; take a model with more positions, or cut the captions");
  }

  config::Value source_block(const data::DataSource& source, const std::string& pattern) const {
    config::Map block;
    block[source.info().files_key] = text_value(pattern);
    if (const auto most = max_tokens_of(source.id(), model_))
      block["max_tokens"] = config::Value(*most);
    return config::Value(std::move(block));
  }

  // ---- words ----

  std::vector<std::string> commands() const {
    const std::string file = options_.output == "-" ? "FILE" : shell_quoted(options_.output);
    const std::string start = chosen_.ranks == 1
                                  ? str("floe train ", file)
                                  : str("floe launch -n ", chosen_.ranks, " -- train ", file);
    return {str("floe plan ", file, " world=", chosen_.ranks), start,
            str("floe report ", shell_quoted("runs/" + name_))};
  }

  std::vector<std::pair<std::string, std::string>> summary() const {
    std::vector<std::pair<std::string, std::string>> lines{
        {"model", model_.text() + (model_.tower.empty() ? "" : "; image tower: " + model_.tower)}};
    for (const DataFacts& facts : data_)
      lines.emplace_back("data", str(facts.kind, ": ", facts.text()));
    lines.emplace_back("machine", machine_.text());
    lines.emplace_back(
        "run", str(counted(chosen_.ranks, "rank"), ", ", shard::name_of(chosen_.sharding), ", ",
                   name_of(chosen_.dtype), ", ", counted(chosen_.steps, "step"), "; ",
                   format_count(chosen_.trainable_numel), " of ",
                   format_count(chosen_.trainable_numel + chosen_.frozen_numel),
                   " parameters train", chosen_.lora ? " (adapters)" : "", "; about ",
                   format_bytes(chosen_.need.all()), " on each rank"));
    return lines;
  }

  std::vector<std::string> warnings() const {
    std::vector<std::string> all;
    for (const DataFacts& facts : data_)
      for (std::string& warning : facts.warnings()) all.push_back(std::move(warning));
    // A few tokens more are those that a Flamingo adds.
    constexpr std::int64_t kAdded = 64;
    if (model_.is_flamingo() && model_.tokenizer &&
        static_cast<std::int64_t>(model_.tokenizer->size()) > model_.vocab + kAdded)
      all.push_back(
          str("the tokenizer has ", model_.tokenizer->size(), " tokens and '", options_.model,
              "' a vocabulary of ", model_.vocab,
              ", so that the table of the model grows; is it the tokenizer of this model?"));
    if (!options_.wishes.gpu_memory && machine_.num_gpus > 0 && chosen_.ranks > machine_.num_gpus)
      all.push_back(str("there are ", counted(machine_.num_gpus, "GPU"), " here, so ",
                        chosen_.ranks,
                        " ranks need several machines; start them with torchrun or "
                        "srun (docs/training.md)"));
    if (!chosen_.does_not_fit.empty())
      all.push_back(str("this does not fit: a rank needs about ", format_bytes(chosen_.need.all()),
                        ", and about ",
                        format_bytes(std::max<std::int64_t>(0, chosen_.need.available)),
                        " can be used; ", chosen_.does_not_fit));
    return all;
  }

  std::string head(const Starter& starter) const {
    std::string out =
        "A configuration for floe train, written by floe init: a beginning, to be read and "
        "changed.\nEvery value says what it means and why it is as it is. Keys that are not here "
        "have their defaults: 'floe train --help' and docs/configuration.md list all.\n\n";
    for (const auto& [what, text] : starter.summary) out += str(what, ": ", text, ".\n");
    out += "\n";
    for (const std::string& warning : starter.warnings) out += "Note: " + warning + ".\n";
    if (!starter.warnings.empty()) out += "\n";
    for (const std::string& command : starter.next) out += "  " + command + "\n";
    return out;
  }

  const StarterOptions& options_;
  ModelFacts model_;
  std::vector<DataFacts> data_;
  Machine machine_;
  Choices chosen_;
  std::string name_;
};

}  // namespace

Starter make_starter(const StarterOptions& options) {
  try {
    return StarterWriter(options).make();
  } catch (const DataError& error) {
    throw ConfigError(str("init: ", error.what()));
  }
}

}  // namespace floe::starter
