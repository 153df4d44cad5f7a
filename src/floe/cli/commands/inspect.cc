#include "floe/inspect/inspect.h"

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "floe/checkpoint/load/resume.h"
#include "floe/cli/command.h"
#include "floe/cli/commands/inspect_files.h"
#include "floe/cli/options.h"
#include "floe/cli/used_model.h"
#include "floe/data/shards/shard_list.h"
#include "floe/data/sources/laion.h"
#include "floe/data/sources/mmc4.h"
#include "floe/image/image.h"
#include "floe/inspect/report.h"
#include "floe/inspect/sheet.h"
#include "floe/io/file/file.h"

namespace floe::cli {
namespace {

template <class Choice>
std::optional<Choice> choice(const Options& options, const std::string& name,
                             const std::map<std::string, Choice>& choices) {
  const auto value = options.value(name);
  if (!value) return std::nullopt;
  const auto chosen = choices.find(*value);
  std::vector<std::string> names;
  for (const auto& [key, meaning] : choices) names.push_back(key);
  require<ConfigError>(chosen != choices.end(), "inspect: ", name, " is ", join(names, " or "),
                       ", got '", *value, "'");
  return chosen->second;
}

inspect::InspectOptions inspect_options(const Options& options) {
  constexpr std::int64_t kMost = 1'000'000'000;
  inspect::InspectOptions chosen;
  std::map<std::string, const data::DataSource*> sources;
  for (const auto& source : data::data_sources()) sources[source->id()] = source.get();
  chosen.source = choice(options, "--source", sources).value_or(nullptr);
  chosen.data.rules = choice<data::Rules>(options, "--rules",
                                          {{"openflamingo", data::Rules::openflamingo},
                                           {"corrected", data::Rules::corrected}})
                          .value_or(chosen.data.rules);
  chosen.tokenizer = options.value("--tokenizer").value_or("");
  auto& laion = chosen.data.block<data::LaionConfig>().emplace();
  auto& mmc4 = chosen.data.block<data::Mmc4Config>().emplace();
  laion.max_tokens = options.integer("--max-tokens", laion.max_tokens, 1, kMost);
  mmc4.max_tokens = options.integer("--max-tokens", mmc4.max_tokens, 1, kMost);
  mmc4.text_sim_threshold = options.number("--text-sim-threshold", mmc4.text_sim_threshold);
  mmc4.min_images = options.integer("--min-images", mmc4.min_images, 0, kMost);
  mmc4.max_images = options.integer("--max-images", mmc4.max_images, 1, kMost);
  if (options.has("--limit")) chosen.limit = options.integer("--limit", 0, 1, kMost);
  Args lists;
  for (const auto& path : split_words(options.words()).paths) lists.push_back(as_shards(path));
  chosen.shards = data::expand_shards(join(lists, "::"));
  return chosen;
}

// Options that another source reads would be ignored.
void refuse_unread(const Options& options, const data::DataSource& source) {
  const std::string& id = source.id();
  const auto refuse = [&](const char* name, bool reads) {
    require<ConfigError>(reads || !options.has(name), "inspect: ", name, " has no use with ", id,
                         "; leave it out, or say with --source what this is");
  };
  refuse("--max-tokens", id == "laion" || id == "mmc4");
  for (const char* name : {"--text-sim-threshold", "--min-images", "--max-images"})
    refuse(name, id == "mmc4");
}

void print_line(const data::Outcome& outcome) {
  if (const auto* dropped = std::get_if<data::Dropped>(&outcome)) {
    std::cout << "dropped  " << dropped->key << "  " << dropped->reason << ": " << dropped->detail
              << "\n";
    return;
  }
  const auto& sample = std::get<data::Sample>(outcome);
  std::cout << "kept     " << sample.key << "  " << sample.ids.size() << " tokens, "
            << sample.num_images() << " images\n";
}

void write_bytes(const std::string& path, std::span<const std::byte> bytes) {
  write_file_atomically(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string pretty(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void inspect_shards(const Options& options) {
  for (const char* name : {"--samples", "--html", "--png"})
    require<ConfigError>(!options.has(name) || options.has("--tokenizer"), "inspect: ", name,
                         " needs --tokenizer DIR, the tokenizer that training would use");
  const auto html = options.written("--html", ".html"), png = options.written("--png", ".png");
  inspect::Inspection inspection(inspect_options(options));
  const bool lines = options.has("--samples"), json = options.has("--json");
  constexpr std::int64_t kCards = 60;
  inspect::ContactSheet sheet(
      static_cast<std::size_t>(inspection.options().limit.value_or(kCards)));
  inspect::CropGrid grid(inspection.crop_size());
  inspect::InspectReport report;
  bool is_first = true;
  inspection.run([&](const data::RawSample& raw, const data::Outcome& outcome) {
    if (std::exchange(is_first, false)) refuse_unread(options, inspection.source());
    if (lines && json)
      std::cout << inspect::json_line(outcome) << "\n";
    else if (lines)
      print_line(outcome);
    else
      report.add(raw, outcome);
    if (html) sheet.add(outcome, inspection);
    if (png) grid.add(outcome);
  });
  if (html) write_file_atomically(*html, sheet.html(inspection));
  if (png) write_bytes(*png, image::encode_png(grid.image()));
  if (!lines) std::cout << (json ? pretty(report.json(inspection)) : report.text(inspection));
}

void inspect_tensors(const std::string& path, bool json, bool verify) {
  const auto facts = checkpoint_facts(path, verify);
  if (json) {
    auto all = tensors_json(path);
    if (!facts.is_null()) all["checkpoint"] = facts;
    std::cout << pretty(all);
    return;
  }
  std::cout << tensors_text(path) << facts_text(facts);
}

void inspect_run(const std::string& path, bool json, bool verify) {
  const std::string folder = checkpoint::run_at(path);
  auto run = run_facts(folder);
  const auto [newest, passed_over] = checkpoint::newest_whole(
      folder, verify ? checkpoint::Reading::bytes : checkpoint::Reading::sizes);
  const bool has_checkpoint = !newest.empty();
  require<CheckpointError>(has_checkpoint || !verify, "there is no checkpoint to verify in '",
                           folder, "'", passed_over.empty() ? "" : ": ", join(passed_over, "; "));
  if (!passed_over.empty()) run["not_used"] = passed_over;
  nlohmann::ordered_json facts;
  if (has_checkpoint) facts = checkpoint_facts(newest, verify);
  if (json) {
    auto all = has_checkpoint ? tensors_json(newest) : nlohmann::ordered_json::object();
    all["run"] = run;
    if (has_checkpoint) all["checkpoint"] = facts;
    std::cout << pretty(all);
    return;
  }
  std::cout << facts_text(run);
  if (!has_checkpoint) return;
  facts.erase("objects");  // who wants them asks for the checkpoint
  std::cout << "\n" << totals_text(newest) << facts_text(facts);
}

void inspect_model(const std::string& path, const Args& changes, bool json) {
  const auto facts =
      model_facts(require_model("inspect", locate("inspect", path, Wanted::config), changes));
  std::cout << (json ? pretty(facts) : facts_text(facts));
}

void inspect_tokenizer(const std::string& path, bool json) {
  require<ConfigError>(!json, "inspect: a tokenizer is described in words; leave out --json");
  std::cout << token::describe(*token::load_tokenizer(path));
}

Exit run_inspect(const Args& args) {
  const Options options(kInspectCommand, args);
  const Words words = split_words(options.words());
  const Args& paths = words.paths;
  require<ConfigError>(
      !paths.empty(), "inspect: name something to inspect; 'floe inspect --help' says what can be");
  std::set<PathKind> kinds;
  for (const auto& path : paths) {
    const PathKind kind = kind_of(path);
    kinds.insert(kind == PathKind::nothing ? PathKind::shards : kind);  // a pattern, or a command
  }
  require<ConfigError>(words.changes.empty() || kinds == std::set{PathKind::yaml}, "inspect: '",
                       words.changes.empty() ? "" : words.changes[0],
                       "' has no effect; it changes a model that a YAML describes");
  if (kinds == std::set{PathKind::shards}) {
    require<ConfigError>(!options.has("--verify"),
                         "inspect: --verify is for checkpoints, not for '", paths.front(), "'");
    inspect_shards(options);
    return Exit::done;
  }
  require<ConfigError>(!kinds.contains(PathKind::shards),
                       "inspect: shards and other files cannot be inspected together");
  for (const OptionRow& row : kInspectCommand.options)
    require<ConfigError>(row.name == "--json" || row.name == "--verify" || !options.has(row.name),
                         "inspect: ", row.name, " is for tar shards, not for '", paths.front(),
                         "'");
  const bool json = options.has("--json"), verify = options.has("--verify");
  for (const auto& path : paths) {
    const PathKind kind = kind_of(path);
    require<ConfigError>(!verify || (kind != PathKind::tokenizer && kind != PathKind::yaml),
                         "inspect: --verify is for checkpoints, not for '", path, "'");
    if (kind == PathKind::run)
      inspect_run(path, json, verify);
    else if (kind == PathKind::yaml)
      inspect_model(path, words.changes, json);
    else if (kind != PathKind::tokenizer)
      inspect_tensors(path, json, verify);
    if (kind == PathKind::tokenizer || (kind == PathKind::model && !json && has_vocabulary(path)))
      inspect_tokenizer(path, json);
  }
  return Exit::done;
}

}  // namespace

const Command kInspectCommand{
    .name = "inspect",
    .summary = "what is in runs, checkpoints, tensor files, models, tar shards or tokenizers",
    .about = R"(usage: floe inspect PATH... [key=value] [options]

What is in a path, in words:
  tar shards       files, samples, sizes of pictures, lengths of texts, what is dropped and why
  safetensors, .pt, .bin, model folders       names, types, shapes and sizes of tensors
  checkpoints      directories and files: the same, and step, world size, parts, files, health
  run folders      how far the run came, its checkpoints, and the newest of them that is whole
  YAML             the model of a training configuration, or of its block 'model:' alone; key=value
                   changes it
  tokenizer folders or files                  kind, vocabulary, special tokens

Shards are files, folders of tars, patterns ('laion/{00000..00127}.tar', 'mmc4/*.tar'), lists
(@FILE), s3:// or pipe: commands. They are read in order, without shuffling and without coins, by
the rules of training.
)",
    .options =
        {
            {"--source", "NAME",
             "laion, mmc4, text or another block of data:; guessed from the first sample when not "
             "given"},
            {"--tokenizer", "DIR", "Hugging Face folder; without it texts are not turned into ids"},
            {"--rules", "openflamingo|corrected", "the rules of training to go by (openflamingo)"},
            {"--max-tokens", "N", "cut texts to N tokens (laion 32, mmc4 256)"},
            {"--text-sim-threshold", "X", "mmc4: least similarity of picture and sentence (0.24)"},
            {"--min-images", "N", "mmc4: fewest <image> marks of a document (1)"},
            {"--max-images", "N", "mmc4: most pictures of a document (6)"},
            {"--limit", "N", "stop after N samples"},
            {"--samples", "", "one line per sample instead of a summary"},
            {"--html", "FILE", "a contact sheet: crops, tokens, which of them are learned"},
            {"--png", "FILE", "the crops in one picture"},
            {"--verify", "", "checkpoints: read every byte and compare it with the checksums"},
            {"--json", "",
             "JSON: with --samples one line per sample with shard, key, status, reason, ids, "
             "images, crop_sha256, label_spans; else one object"},
        },
    .closing = R"(  floe inspect laion/00000.tar --tokenizer opt-1.3b
  floe inspect 'mmc4/{000..003}.tar' --samples --source mmc4 --tokenizer opt-1.3b --json
  floe inspect model.safetensors
  floe inspect runs/demo/checkpoints/last --verify
)",
    .words = "PATH",
    .keys = keys_of_a_run,
    .run = run_inspect,
};

}  // namespace floe::cli
