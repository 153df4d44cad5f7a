#include "floe/generation/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/cli/loaded_model.h"
#include "floe/cli/options.h"
#include "floe/cli/requests_job.h"
#include "floe/generation/generation_defaults.h"
#include "floe/io/file/file.h"
#include "floe/io/tensors/open_tensors.h"

namespace floe::cli {
namespace {

at::Tensor read_picture(const std::string& path, const models::LanguageModel& model) {
  require<ConfigError>(path_exists(path), "generate: there is no picture '", path, "'");
  return requests::read_picture(path, model.picture_options());
}

// Row r of the file belongs to prompt r.
void add_tensor_images(const std::string& path, std::vector<generation::Prompt>& prompts) {
  require<ConfigError>(path_exists(path), "generate: there is no file '", path, "' of images");
  const at::Tensor images = read_image_tensors(*open_tensors(path), path);
  require<DataError>(images.defined(), path, ": needs 'vision_x' (float) or 'vision_x_i8'");
  const auto rows = static_cast<std::int64_t>(prompts.size());
  require<ConfigError>(images.size(0) == rows, "generate: ", path, " has images for ",
                       images.size(0), " rows, but there are ", rows,
                       " prompts; give one --ids for each row");
  for (std::int64_t row = 0; row < rows; ++row)
    prompts[static_cast<std::size_t>(row)].images = images[row];
}

// One prompt gets all pictures; several get one for each of their <image>, in order.
void add_pictures(const std::vector<std::string>& paths, const LoadedModel& loaded,
                  std::vector<generation::Prompt>& prompts) {
  const models::LanguageModel& model = *loaded.built.model;
  require<ConfigError>(model.media_token() >= 0 || paths.empty(),
                       "generate: --image has no use, the model takes no images");
  if (paths.empty()) return;
  std::vector<std::size_t> counts;
  for (const generation::Prompt& prompt : prompts)
    counts.push_back(static_cast<std::size_t>(
        std::count(prompt.ids.begin(), prompt.ids.end(), model.media_token())));
  if (prompts.size() == 1) counts = {paths.size()};
  std::size_t needed = 0;
  for (const std::size_t count : counts) needed += count;
  require<ConfigError>(needed == paths.size(), "generate: ", prompts.size(), " prompts have ",
                       needed, " <image> together, but there are ", paths.size(),
                       " images; give one --image for each <image>, in order");
  auto path = paths.begin();
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    std::vector<at::Tensor> pictures;
    for (std::size_t i = 0; i < counts[p]; ++i) pictures.push_back(read_picture(*path++, model));
    if (!pictures.empty()) prompts[p].images = at::cat(pictures);
  }
}

// "1,2,3" → ids; throws ConfigError that names the option.
std::vector<std::int64_t> parse_ids(const std::string& text, const std::string& option) {
  std::vector<std::int64_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto skip_spaces = [&] {
    while (at < end && *at == ' ') ++at;
  };
  for (;;) {
    skip_spaces();
    std::int64_t id = 0;
    const auto [behind, error] = std::from_chars(at, end, id);
    at = behind;
    skip_spaces();
    require<ConfigError>(error == std::errc() && id >= 0 && (at == end || *at == ','),
                         "generate: ", option, " is '", text,
                         "', but must be token ids such as 1,2,3");
    ids.push_back(id);
    if (at == end) return ids;
    ++at;
  }
}

// Throws ConfigError for options of prompts that are missing or do not go together.
void require_prompts(const Options& options) {
  const auto rows = options.values("--ids"), texts = options.values("--prompt");
  require<ConfigError>(rows.empty() != texts.empty(), "generate: give either --ids or --prompt, ",
                       rows.empty() ? "and at least one of them" : "not both");
  require<ConfigError>(
      !options.has("--images") || texts.empty(),
      "generate: --images goes with --ids; with --prompt, name pictures by --image");
  require<ConfigError>(!options.has("--images") || !options.has("--image"),
                       "generate: give either --images or --image, not both");
  require<ConfigError>(!options.has("--pad-id") || texts.empty(),
                       "generate: --pad-id has no use with --prompt, whose tokens have no padding");
}

// By --ids and --images, or by --prompt and --image; --pad-id names what to leave out at the start
// of --ids. Throws ConfigError for what does not go together and DataError for files.
std::vector<generation::Prompt> read_prompts(const Options& options, const LoadedModel& loaded) {
  const auto rows = options.values("--ids"), texts = options.values("--prompt");
  std::vector<generation::Prompt> prompts;
  const std::int64_t padding = options.integer("--pad-id", -1, 0, INT64_MAX);
  for (const std::string& row : rows) {
    std::vector<std::int64_t> ids = parse_ids(row, "--ids");
    const auto real = std::find_if(ids.begin(), ids.end(), [&](auto id) { return id != padding; });
    prompts.push_back({{real, ids.end()}, {}});
  }
  require<ConfigError>(
      texts.empty() || loaded.built.tokenizer,
      "generate: --prompt needs a tokenizer, and the model has none; set 'tokenizer:' "
      "in its YAML, or give --ids");
  for (const std::string& text : texts) {
    const auto ids = loaded.built.tokenizer->encode(text);
    prompts.push_back({{ids.begin(), ids.end()}, {}});
  }
  if (const auto path = options.value("--images"))
    add_tensor_images(*path, prompts);
  else
    add_pictures(options.values("--image"), loaded, prompts);
  return prompts;
}

constexpr std::int64_t kMost = 1'000'000'000;

generation::EarlyStopping early_stopping(const Options& options) {
  const std::string when = options.value("--early-stopping").value_or("false");
  if (when == "true") return generation::EarlyStopping::yes;
  if (when == "never") return generation::EarlyStopping::never;
  require<ConfigError>(when == "false", "generate: --early-stopping is '", when,
                       "', but must be true, false or never");
  return generation::EarlyStopping::no;
}

generation::GenerateOptions read_generate_options(const Options& options) {
  generation::GenerateOptions how;
  how.max_new_tokens = options.integer("--max-new-tokens", how.max_new_tokens, 1, kMost);
  how.min_new_tokens = options.integer("--min-new-tokens", how.min_new_tokens, 0, kMost);
  how.num_beams = options.integer("--num-beams", how.num_beams, 1, 10'000);
  how.num_return_sequences =
      options.integer("--num-return-sequences", how.num_return_sequences, 1, 10'000);
  how.length_penalty = options.number("--length-penalty", how.length_penalty);
  how.early_stopping = early_stopping(options);
  how.repetition_penalty = options.number("--repetition-penalty", how.repetition_penalty);
  how.no_repeat_ngram = options.integer("--no-repeat-ngram-size", how.no_repeat_ngram, 0, kMost);
  how.sample = options.has("--sample");
  how.temperature = options.number("--temperature", how.temperature);
  how.top_k = options.integer("--top-k", how.top_k, 0, kMost);
  how.top_p = options.number("--top-p", how.top_p);
  how.seed = static_cast<std::uint64_t>(options.integer("--seed", 0, 0, INT64_MAX));
  for (const char* name : {"--length-penalty", "--early-stopping"})
    require<ConfigError>(
        how.num_beams > 1 || !options.has(name), "generate: ", name,
        " has no use without beams; set --num-beams to 2 or more, or leave it out");
  for (const char* name : {"--temperature", "--top-k", "--top-p", "--seed"})
    require<ConfigError>(how.sample || !options.has(name), "generate: ", name,
                         " has no use without --sample; add that, or leave it out");
  how.validate();
  return how;
}

std::string text_of(const token::Tokenizer& tokenizer, const std::vector<std::int64_t>& ids) {
  return tokenizer.decode(std::vector<std::int32_t>(ids.begin(), ids.end()), /*skip_special=*/true);
}

void print_json(const std::vector<generation::Generated>& generated,
                const std::vector<generation::Prompt>& prompts, const token::Tokenizer* tokenizer) {
  nlohmann::ordered_json out;
  for (const char* key : {"ids", "sequences", "prompt", "scores"})
    out[key] = nlohmann::ordered_json::array();
  for (const generation::Generated& result : generated) {
    std::vector<std::int64_t> whole = prompts[result.prompt].ids;
    whole.insert(whole.end(), result.ids.begin(), result.ids.end());
    out["ids"].push_back(result.ids);
    out["sequences"].push_back(whole);
    out["prompt"].push_back(result.prompt);
    out["scores"].emplace_back(nullptr);
    if (result.score) out["scores"].back() = *result.score;
    if (tokenizer) out["text"].push_back(text_of(*tokenizer, result.ids));
  }
  std::cout << out.dump() << "\n";
}

// With what the model's files say.
generation::GenerateOptions for_model(generation::GenerateOptions how, const Options& options,
                                      const LoadedModel& loaded) {
  const auto given = options.value("--eos-id");
  const auto defaults = generation::generation_defaults(loaded.config, *loaded.built.model,
                                                        /*with_ends=*/!given);
  how.eos = defaults.eos;
  if (given)
    how.eos = *given == "none" ? std::vector<std::int64_t>{} : parse_ids(*given, "--eos-id");
  how.images_of_whole_text = defaults.images_of_whole_text;
  return how;
}

Exit run_over_requests(const Options& options, const Words& words,
                       const generation::GenerateOptions& how) {
  const auto shards = shards_of("generate", options, /*with_candidates=*/false);
  require<ConfigError>(!shards || !options.has("--requests"),
                       "generate: give either --requests or --shards, not both");
  for (const char* name : {"--prompt", "--image", "--ids", "--images", "--pad-id", "--json"})
    require<ConfigError>(
        !options.has(name) || (shards && std::string_view(name) == "--prompt"), "generate: ", name,
        " has no use with ",
        shards ? "--shards, whose samples say that" : "--requests, whose file says all that");
  const RequestsJob job{
      .command = kGenerateCommand,
      .model = words.paths[0],
      .file = options.value("--requests").value_or(""),
      .shards = shards,
      .changes = words.changes,
      .needs =
          [&](const LoadedModel&) {
            return requests::RequestNeeds{.new_tokens = how.max_new_tokens};
          },
      .work =
          [&](const LoadedModel& loaded, const requests::RunRequests&) {
            return requests::generate_work(loaded.ready(), for_model(how, options, loaded));
          },
  };
  return run_requests_job(job, options);
}

Exit run_generate(const Args& args) {
  const Options options(kGenerateCommand, args);
  const Words words = split_words(options.words());
  require<ConfigError>(
      words.paths.size() == 1,
      "generate: expected one model (a run folder, a checkpoint, an exported folder "
      "or a YAML), got ",
      words.paths.size(), "; 'floe generate --help' shows the options");
  generation::GenerateOptions how = read_generate_options(options);
  if (options.has("--requests") || options.has("--shards"))
    return run_over_requests(options, words, how);
  for (const char* name : {"--output", "--force", "--batch-tokens", "--sharded"})
    require<ConfigError>(!options.has(name), "generate: ", name,
                         " has no use without --requests or --shards");
  require_prompts(options);
  const LoadedModel loaded = load_model("generate", words.paths[0], words.changes, options);
  generation::require_decoder(*loaded.built.model);
  how = for_model(how, options, loaded);
  const std::vector<generation::Prompt> prompts = read_prompts(options, loaded);
  const std::atomic<bool>& stop_requested = stop_on_signals();
  how.on_step = [&](std::int64_t num_new) {
    require(!stop_requested, "generate: stopped by a signal after ", num_new, " of at most ",
            how.max_new_tokens, " tokens");
  };
  const auto generated =
      generation::generate(*loaded.built.model, prompts, how, loaded.device, loaded.dtype);
  const token::Tokenizer* tokenizer = loaded.built.tokenizer.get();
  if (options.has("--json")) {
    print_json(generated, prompts, tokenizer);
  } else {
    for (const generation::Generated& result : generated)
      std::cout << (tokenizer ? text_of(*tokenizer, result.ids) : join(result.ids, ",")) << "\n";
  }
  return Exit::done;
}

std::vector<OptionRow> generate_options() {
  std::vector<OptionRow> rows{
      {"--prompt", "TEXT", "text to continue; <image> stands for an image; may repeat", kRepeats},
      {"--image", "FILE", "JPEG, PNG, WebP or GIF for the next <image>; may repeat", kRepeats},
      {"--ids", "IDS", "token ids to continue, such as 1,2,3; may repeat", kRepeats},
      {"--images", "FILE", "vision_x or vision_x_i8 [prompts, images, 1, 3, H, W] for --ids"},
      {"--pad-id", "ID", "leave this id out at the start of --ids: it is padding"},
      {},
      {"--requests", "FILE", "requests, a JSON object on each line; may run on several ranks"},
  };
  const std::vector<OptionRow> of_shards = shards_options(/*with_candidates=*/false);
  rows.insert(rows.end(), of_shards.begin(), of_shards.end());
  const std::vector<OptionRow> of_requests = requests_options();
  rows.insert(rows.end(), of_requests.begin(), of_requests.end());
  const std::vector<OptionRow> others{
      {},
      {"--max-new-tokens", "N", "at most so many new tokens (default 20)"},
      {"--min-new-tokens", "N", "no end token before so many (default 0)"},
      {"--eos-id", "IDS",
       "tokens that end a text, or none (default: <|endofchunk|> for a Flamingo, else "
       "eos_token_id of the language model's files)"},
      {"--repetition-penalty", "X", "above 1: tokens that occurred become less likely (default 1)"},
      {"--no-repeat-ngram-size", "N", "no N tokens in a row twice (default 0: no such rule)"},
      {"--num-return-sequences", "N", "results per prompt (default 1)"},
      {},
      {"--num-beams", "N", "beam search with N beams (default 1: none)"},
      {"--length-penalty", "X",
       "score = log-probability / length^X; above 0 favours long texts (default 1)"},
      {"--early-stopping", "true|false|never",
       "true: end with N finished beams; false: when the best open beam is worse than those; "
       "never: when none can get better (default false)"},
      {},
      {"--sample", "", "draw tokens instead of taking the most likely"},
      {"--temperature", "X", "below 1: more certain, above 1: more varied (default 1)"},
      {"--top-k", "N", "draw from the N most likely tokens (default 0: from all)"},
      {"--top-p", "X", "draw from the most likely that together have this probability (default 1)"},
      {"--seed", "N", "another seed, other draws (default 0)"},
      {},
      {"--json", "",
       "one JSON object: ids (new ones), sequences (with the prompt), prompt (its number), "
       "scores (beam search, else null), text (with a tokenizer)"},
      dtype_option(),
      device_option(),
  };
  rows.insert(rows.end(), others.begin(), others.end());
  return rows;
}

}  // namespace

const Command kGenerateCommand{
    .name = "generate",
    .summary = "text from a model: greedy, beam search or sampling",
    .about = R"(usage: floe generate MODEL [key=value] --prompt TEXT [--image FILE ...] [options]
       floe generate MODEL [key=value] --ids 1,2,3 [--images FILE.safetensors] [options]
       floe generate MODEL [key=value] --requests FILE.jsonl [--output FILE.jsonl] [options]
       floe generate MODEL [key=value] --shards LIST --prompt TEXT [--output FILE.jsonl] [options]

Continues text with a model: the tokens that transformers' generate gives, through OpenFlamingo for a
model with images. Prints the new text (or its ids, without a tokenizer), one line per result. With
--requests many at once, each as it would be alone: {"prompt": "<image>A", "images": ["cat.jpg"]} on a
line; the result of a request has ids, text and with beams scores, or 'error', and the run goes on.
)",
    .options = generate_options(),
    .closing = R"(  floe generate runs/demo --prompt '<image>Output:' --image cat.jpg --num-beams 3
  floe generate runs/demo/checkpoints/step_1000 --prompt '<image>' --image cat.jpg
  floe generate model.yaml weights=flamingo.pt --ids 1,2,3
  floe launch -n 2 -- generate runs/demo --requests requests.jsonl --output texts.jsonl
  floe generate runs/demo --shards 'data/{0000..0009}.tar' --prompt '<image>Output:' --output texts.jsonl

MODEL is a run folder (its newest checkpoint is used, and named on stderr), a checkpoint, an exported
folder, or a YAML: a training configuration or its block 'model:' alone. key=value, ++key=value and
~key change the configuration; where a run's base files have moved: model.lm=PATH.
)",
    .words = "PATH",
    .keys = keys_of_a_run,
    .run = run_generate,
};

}  // namespace floe::cli
