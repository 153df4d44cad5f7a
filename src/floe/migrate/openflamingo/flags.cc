#include "floe/migrate/openflamingo/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "floe/core/error.h"
#include "floe/core/names.h"

namespace floe::migrate {
namespace {

const Flag& flag_of(std::string_view name) {
  const auto& flags = openflamingo_flags();
  const auto found =
      std::find_if(flags.begin(), flags.end(), [&](const Flag& flag) { return flag.name == name; });
  require(found != flags.end(), "train.py has no flag ", name);
  return *found;
}

// As argparse has it: the flag of this name, else all that begin with it.
std::vector<const Flag*> matches(const std::string& name) {
  std::vector<const Flag*> longer;
  for (const Flag& flag : openflamingo_flags()) {
    if (flag.name == name) return {&flag};
    if (name.size() > 2 && flag.name.starts_with(name)) longer.push_back(&flag);
  }
  return longer;
}

// Null: there is none.
const Flag* match(const std::string& name) {
  const std::vector<const Flag*> found = matches(name);
  if (found.empty()) return nullptr;
  std::vector<std::string_view> names;
  for (const Flag* flag : found) names.push_back(flag->name);
  require<ConfigError>(found.size() == 1, "migrate: '", name, "' could be ", join(names, " or "),
                       " of train.py; write it out");
  return found.front();
}

// So near to a flag that nobody else's is meant.
bool is_misspelt(const std::string& name) {
  constexpr std::size_t kMostEdits = 2;
  return std::any_of(
      openflamingo_flags().begin(), openflamingo_flags().end(),
      [&](const Flag& flag) { return edit_distance(flag.name, name) <= kMostEdits; });
}

bool is_negative_number(const std::string& word) {
  double number = 0;
  const char* end = word.data() + word.size();
  const auto [last, error] = std::from_chars(word.data(), end, number);
  return error == std::errc() && last == end && std::isfinite(number);
}

// Whether argparse would see an option here rather than a value.
bool looks_like_a_flag(const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return false;
  if (!matches(word.substr(0, word.find('='))).empty()) return true;
  return !is_negative_number(word) && word.find(' ') == std::string::npos;
}

// Python's int() and float() allow spaces around, a plus, and underscores between digits.
std::string python_number(const std::string& word) {
  const auto first = word.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  std::string text = word.substr(first, word.find_last_not_of(" \t\n") - first + 1);
  if (text[0] == '+' && text.size() > 1 && text[1] != '-') text.erase(0, 1);
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](std::size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '9';
    };
    if (text[i] != '_' || i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) out += text[i];
  }
  return out;
}

std::string checked(const Flag& flag, const std::string& word) {
  if (flag.kind == FlagKind::integer || flag.kind == FlagKind::number) {
    const std::string text = python_number(word);
    const char* end = text.data() + text.size();
    std::int64_t whole = 0;
    double real = 0;
    const auto [last, error] = flag.kind == FlagKind::integer
                                   ? std::from_chars(text.data(), end, whole)
                                   : std::from_chars(text.data(), end, real);
    require<ConfigError>(error == std::errc() && last == end && std::isfinite(real),
                         "migrate: ", flag.name, " is '", word, "', but must be ",
                         flag.kind == FlagKind::integer ? "a whole number" : "a number");
    return text;
  }
  if (!flag.choices.empty()) {
    std::vector<std::string> choices;
    for (std::size_t at = 0; at <= flag.choices.size();) {
      const auto end = std::min(flag.choices.find('|', at), flag.choices.size());
      choices.emplace_back(flag.choices.substr(at, end - at));
      at = end + 1;
    }
    require<ConfigError>(std::find(choices.begin(), choices.end(), word) != choices.end(),
                         "migrate: ", flag.name, " is '", word, "', but must be one of ",
                         join(choices));
  }
  return word;
}

std::string blank(std::string_view word) {
  const bool only_space = word.find_first_not_of(" \t\r\n") == std::string_view::npos;
  return only_space ? "; a backslash with a space behind it does not continue a line" : "";
}

}  // namespace

const std::vector<Flag>& openflamingo_flags() {
  using enum FlagKind;
  using enum Copy;
  static const std::vector<Flag> flags{
      // The model.
      {"--vision_encoder_path", text, "ViT-L-14", "model.vision", by_hand,
       "The image tower: a folder or file of open_clip, Hugging Face or OpenAI on disk; floe "
       "downloads nothing."},
      {"--vision_encoder_pretrained", text, "openai", "model.vision", by_hand,
       "Which weights of that tower; together with --vision_encoder_path it says what to download. "
       "A "
       "file is taken as it is."},
      {"--lm_path", text, "facebook/opt-1.3b", "model.lm", by_hand,
       "The language model: a Hugging Face folder on disk; a name of the hub has to be downloaded "
       "first."},
      {"--tokenizer_path", text, "facebook/opt-30b", "model.tokenizer", by_hand,
       "The tokenizer's folder on disk; empty is that of the language model, here as there."},
      {"--cross_attn_every_n_layers", integer, "1", "model.cross_attn_every_n_layers", if_given,
       "Gated cross-attention stands in front of every n-th layer."},
      {"--freeze_lm_embeddings", toggle, "", "model.freeze_lm_embeddings", by_hand,
       "The embeddings of <image> and <|endofchunk|> stay as they are. Without it exactly these "
       "two "
       "rows train; the rest of the table has no gradient and no optimizer state."},
      // The run.
      {"--run_name", text, "openflamingo3B", "run.name, run.dir", by_hand,
       "The run's folder is run.dir/run.name, with checkpoints, metrics and logs; a path is split. "
       "It is the name of the W&B run too."},
      {"--seed", integer, "42", "run.seed", always,
       "Of everything random; with floe a run that is stopped and resumed sees the same numbers."},
      {"--resume_from_checkpoint", text, "", "run.resume", by_hand,
       "Where the run begins: train.py's checkpoint_N.pt is read as it is. On later starts the "
       "run's "
       "own newest checkpoint wins, as without the flag (auto)."},
      {"--delete_previous_checkpoint", toggle, "",
       "checkpoint.delete_previous_checkpoint, checkpoint.keep", by_hand,
       "Only the newest checkpoint stays. Without it train.py keeps all of them: keep is null."},
      {"--logging_steps", integer, "100", "log.every_steps", always,
       "Steps between two lines of the log; metrics.jsonl has every step."},
      {"--offline", toggle, "", "log.wandb.mode", by_hand,
       "W&B writes a folder for `wandb sync`. Models are always read from disk."},
      // Steps.
      {"--num_epochs", integer, "1", "train.epochs", always,
       "Epochs of num_samples each, not passes over the data."},
      {"--gradient_accumulation_steps", integer, "1", "train.gradient_accumulation", if_given,
       "Batches of each source in an update. Gradients are clipped once, before the update; "
       "train.py "
       "clips the running sum at every batch."},
      {"--learning_rate", number, "1e-4", "train.optimizer.lr", if_given,
       "The rate of AdamW after the warm-up."},
      {"--lr_scheduler", text, "constant", "train.schedule.type", by_hand,
       "constant, linear or cosine, as transformers has them; train.py takes any other word for "
       "constant."},
      {"--warmup_steps", integer, "5000", "train.schedule.warmup_steps", always,
       "Updates in which the rate grows from 0."},
      {"--weight_decay", number, "0.1", "train.optimizer.weight_decay", if_given,
       "Of what train.optimizer.decay names: gated cross-attention alone, as in train.py."},
      {"--precision", text, "fp32",
       "strategy.mixed_precision.param, strategy.mixed_precision.reduce, "
       "strategy.mixed_precision.buffer, precision.autocast",
       by_hand,
       "amp_bf16 and amp_bfloat16: autocast over fp32 weights; fp32: everything in fp32; bf16 and "
       "fp16: computed in that type, with fp32 masters of what trains, and a scaled loss with "
       "fp16.",
       "amp_bf16|amp_bfloat16|bf16|fp16|fp32"},
      {"--gradient_checkpointing", toggle, "", "strategy.activation_checkpointing", by_hand,
       "Decoder layers, gated cross-attention and resampler recompute their forward; "
       "strategy.activations.offload keeps the rest in host memory, as train.py asks for."},
      {"--loss_multiplier_mmc4", number, "1.0", "data.mmc4.weight", if_given,
       "What the loss of this source is multiplied with."},
      {"--loss_multiplier_laion", number, "1.0", "data.laion.weight", always,
       "What the loss of this source is multiplied with."},
      // Data.
      {"--laion_shards", text, "", "data.laion.shards", by_hand,
       "Image-text pairs: the same pattern, also s3:// and pipe:. Unlike train.py floe needs only "
       "one of the two sources."},
      {"--mmc4_shards", text, "", "data.mmc4.shards", by_hand,
       "Interleaved documents, with ChatGPT's sequences: the same pattern, also s3:// and pipe:."},
      {"--batch_size_mmc4", integer, "128", "data.mmc4.batch_size", always,
       "Samples of a batch on each rank."},
      {"--batch_size_laion", integer, "128", "data.laion.batch_size", always,
       "Samples of a batch on each rank."},
      {"--train_num_samples_mmc4", integer, "10000", "data.mmc4.num_samples", always,
       "Samples of an epoch over all ranks."},
      {"--train_num_samples_laion", integer, "10000", "data.laion.num_samples", always,
       "Samples of an epoch over all ranks."},
      {"--workers", integer, "1", "data.workers", by_hand,
       "Logical streams of a source, part of the order of samples; at least 1. data.threads "
       "decode, "
       "and never change the order."},
      {"--dataset_resampled", toggle, "", "data.resampled", by_hand,
       "Shards are drawn with replacement."},
      {"--mmc4_textsim_threshold", number, "30", "data.mmc4.text_sim_threshold", always,
       "Pictures less similar to their sentence are left out. MMC4 has cosines, of which none "
       "reaches train.py's default of 30; its authors used 0.24."},
      {"--mmc4_max_num_images", integer, "6", "data.mmc4.max_images", if_given,
       "Most pictures of a document."},
      {"--mmc4_min_num_images", integer, "1", "data.mmc4.min_images", if_given,
       "Documents with fewer pictures are dropped."},
      {"--use_media_placement_augmentation", toggle, "", "", by_hand,
       "Only in 1.x, whose text could look at the next picture instead of the one before it; text "
       "looks at the picture before it, as in 2.0."},
      // Ranks.
      {"--dist-url", text, "env://", "dist.init", by_hand,
       "env:// is env. For tcp://HOST:PORT the ranks get MASTER_ADDR and MASTER_PORT instead, so "
       "that their numbers may come from the launcher."},
      {"--dist-backend", text, "nccl", "dist.backend, dist.device", by_hand,
       "nccl or gloo. Not given it is auto: nccl with GPUs, gloo without, where train.py fails."},
      {"--horovod", toggle, "", "", by_hand,
       "Ranks find each other by what the launcher sets, horovodrun's mpirun included; gradients "
       "go "
       "through NCCL or Gloo."},
      {"--no-set-device-rank", toggle, "", "", by_hand,
       "Rank i of a machine takes its GPU i, so each must see all GPUs of its machine."},
      {"--fsdp", toggle, "", "strategy.sharding", by_hand,
       "full_shard, or hybrid by --fsdp_sharding_strategy; no_shard, which is DDP, without it. "
       "Nothing is wrapped by hand, and frozen layers have no gradients."},
      {"--fsdp_use_orig_params", toggle, "", "train.optimizer.decay", by_hand,
       "floe always works as with it: decay by parameter, two embedding rows train. Without it "
       "(and "
       "with --fsdp) everything decays."},
      {"--fsdp_sharding_strategy", text, "full", "strategy.sharding, strategy.hybrid_shard_size",
       by_hand,
       "full is full_shard; hybrid slices inside a machine and keeps a copy on each: the shard "
       "size "
       "is its number of ranks.",
       "full|hybrid"},
      // Weights & Biases.
      {"--report_to_wandb", toggle, "", "log.wandb.mode", by_hand,
       "online: the installed `wandb sync` uploads while the run trains; offline with --offline."},
      {"--wandb_project", text, "", "log.wandb.project", by_hand,
       "Project of the W&B run; W&B calls it uncategorized when train.py names none."},
      {"--wandb_entity", text, "", "log.wandb.entity", by_hand, "Team or user of the W&B run."},
      {"--save_checkpoints_to_wandb", toggle, "", "log.wandb.checkpoints", by_hand,
       "Checkpoints become files of the W&B run."},
  };
  return flags;
}

FlagValues::FlagValues(const std::vector<std::string>& words, Page& page) {
  std::vector<std::string> names;
  for (const Flag& flag : openflamingo_flags()) names.emplace_back(flag.name);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    require<ConfigError>(looks_like_a_flag(word), "migrate: train.py takes no word '", word,
                         "' beside its flags", blank(word));
    const auto equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto has_value = [&] { return i + 1 < words.size() && !looks_like_a_flag(words[i + 1]); };
    const Flag* flag = match(name);
    if (!flag) {
      const std::string near = did_you_mean(name, names);
      require<ConfigError>(!is_misspelt(name), "migrate: '", name,
                           "' is no flag of OpenFlamingo's train.py", near);
      std::string all = shell_word(word);
      while (has_value()) all += " " + shell_word(words[++i]);
      const std::string sentence =
          str(all, " is no flag of OpenFlamingo's train.py; left out", near);
      page.leave_out(sentence + ".");
      page.warn(sentence);
      continue;
    }
    if (flag->kind == FlagKind::toggle) {
      require<ConfigError>(equals == std::string::npos, "migrate: ", flag->name,
                           " takes no value, got '", word, "'");
      add(*flag, "", page);
    } else if (equals != std::string::npos) {
      add(*flag, word.substr(equals + 1), page);
    } else {
      require<ConfigError>(has_value(), "migrate: ", flag->name, " needs a value behind it",
                           i + 1 < words.size()
                               ? str(", and '", words[i + 1], "' is a flag; write ", flag->name,
                                     "=VALUE if it is the value")
                               : "");
      add(*flag, words[++i], page);
    }
  }
}

void FlagValues::add(const Flag& flag, const std::string& text, Page& page) {
  const auto earlier = std::find_if(given_.begin(), given_.end(),
                                    [&](const Given& given) { return given.flag == &flag; });
  Given now{&flag, checked(flag, text)};
  if (earlier == given_.end()) {
    given_.push_back(std::move(now));
    return;
  }
  if (earlier->text != now.text)
    page.warn(str(flag.name, " is given twice; train.py takes the last, ", shell_word(now.text)));
  *earlier = std::move(now);
}

const FlagValues::Given* FlagValues::find(std::string_view name) const {
  const Flag* flag = &flag_of(name);
  const auto found = std::find_if(given_.begin(), given_.end(),
                                  [&](const Given& given) { return given.flag == flag; });
  return found == given_.end() ? nullptr : &*found;
}

bool FlagValues::given(std::string_view name) const { return find(name) != nullptr; }

std::string FlagValues::text(std::string_view name) const {
  const Given* given = find(name);
  return given ? given->text : std::string(flag_of(name).fallback);
}

std::int64_t FlagValues::integer(std::string_view name) const {
  const std::string number = text(name);
  std::int64_t value = 0;
  std::from_chars(number.data(), number.data() + number.size(), value);
  return value;
}

config::Origin FlagValues::origin(std::string_view name) const {
  const Given* given = find(name);
  if (!given)
    return {std::make_shared<const std::string>(str("train.py's default of ", name)), 0, 0};
  return config::Origin::of_argument(
      given->flag->kind == FlagKind::toggle ? std::string(name) : str(name, " ", given->text));
}

config::Value FlagValues::value(std::string_view name) const { return value(name, text(name)); }

config::Value FlagValues::value(std::string_view name, std::string_view other_text) const {
  const Flag& flag = flag_of(name);
  if (flag.kind == FlagKind::toggle) return config::Value(given(name), origin(name));
  if (flag.kind == FlagKind::text) return text_value(other_text, origin(name));
  return config::Value::plain(other_text, origin(name));
}

std::string FlagValues::shown(std::string_view name) const {
  const Flag& flag = flag_of(name);
  if (given(name))
    return flag.kind == FlagKind::toggle ? std::string(name)
                                         : str(name, " ", shell_word(text(name)));
  return str(name, flag.fallback.empty() ? " (not given)"
                                         : str(" (train.py's default, ", flag.fallback, ")"));
}

std::string flags_reference() {
  std::string out = "| flag | default | floe | what floe does |\n| --- | --- | --- | --- |\n";
  const auto quoted = [](std::string_view words) {
    std::string text = words.empty() ? "" : "`";
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words.substr(i, 2) == ", ") {
        text += "`, `";
        ++i;
      } else {
        text += words[i];
      }
    }
    return text + (words.empty() ? "" : "`");
  };
  for (const Flag& flag : openflamingo_flags()) {
    std::string remark;
    for (const char c : flag.remark)
      remark += (c == '|' || c == '<' ? "\\" : "") + std::string(1, c);
    out +=
        str("| `", flag.name, "` | ", flag.kind == FlagKind::toggle ? "off" : quoted(flag.fallback),
            " | ", flag.keys.empty() ? "none" : quoted(flag.keys), " | ", remark, " |\n");
  }
  return out;
}

}  // namespace floe::migrate
