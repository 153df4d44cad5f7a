#include "floe/cli/model_card.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <utility>
#include <vector>

#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/utf8.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/models/flamingo/exported_flamingo.h"
#include "floe/models/registry.h"
#include "floe/observe/report/logged_scores.h"
#include "floe/version.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;
using models::ModelConfig;
using Json = nlohmann::json;

constexpr const char* kCardMark = "<!-- model card of floe export";

// ---- words of other formats ----

// A YAML string in quotes, of ASCII alone: readers of front matter disagree about the rest.
std::string yaml_text(const std::string& bytes) {
  const std::string text = shown_bytes(bytes);
  std::string out = "\"";
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const char32_t point = next_char(at);
    if (point == '"' || point == '\\') {
      out += {'\\', static_cast<char>(point)};
    } else if (point >= 0x20 && point < 0x7f) {
      out += static_cast<char>(point);
    } else {
      char code[16];
      std::snprintf(code, sizeof code, "\\U%08x", static_cast<unsigned>(point));
      out += code;
    }
  }
  return out + '"';
}

// A text in one line of Markdown, or a cell of a table, that is shown as it is.
std::string markdown(const std::string& bytes) {
  std::string out;
  for (const char c : shown_bytes(bytes)) {
    if (std::string_view("\\`*_[]<>|#&").find(c) != std::string_view::npos) out += '\\';
    out += std::iscntrl(static_cast<unsigned char>(c)) ? ' ' : c;
  }
  return out;
}

// A string of Python.
std::string python_text(const std::string& bytes) {
  return Json(shown_bytes(bytes)).dump();  // JSON's strings are Python's as well
}

// ---- what the model is ----

// "facebook/opt-1.3b" when the folder's configuration says so; a path of some machine does not.
std::string hub_name(const std::string& folder) {
  const std::string file = folder + "/config.json";
  if (folder.empty() || !path_exists(file)) return "";
  const auto config = parse_json(read_text(file, 1 << 24), file);
  const auto found = config.find("_name_or_path");
  if (found == config.end() || !found->is_string()) return "";
  const auto name = found->get<std::string>();
  const bool plain = name.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789-_./") == std::string::npos;
  const auto slash = name.find('/');
  const bool one_slash =
      slash != std::string::npos && slash > 0 && name.find('/', slash + 1) == std::string::npos;
  return plain && one_slash && name[0] != '.' ? name : "";
}

bool is_flamingo(const ModelCard& card) {
  return card.model && card.model->config.type == ModelConfig::Type::flamingo;
}

std::string library(const ModelCard& card) {
  if (card.adapters) return "peft";
  if (is_flamingo(card)) return "open-flamingo";
  return card.model || !card.base.empty() ? "transformers" : "safetensors";
}

// The class of transformers that loads the folder.
std::string auto_class(const ModelCard& card) {
  const std::string folder = card.model ? card.model->config.lm : card.base;
  const auto config = models::lm_config(folder);
  const auto type = config.find("model_type");
  const models::ModelFamily* family =
      type != config.end() && type->is_string() ? models::find_family(*type) : nullptr;
  return family ? family->auto_class : "AutoModelForCausalLM";
}

// What the hub files the model under; empty: nothing fits.
std::string pipeline_tag(const ModelCard& card) {
  if (is_flamingo(card)) return "image-text-to-text";
  if (!card.model && card.base.empty()) return "";
  return auto_class(card) == "AutoModelForMaskedLM" ? "fill-mask" : "text-generation";
}

std::string usage(const ModelCard& card) {
  if (card.adapters)
    return str(
        "from peft import AutoPeftModelForCausalLM\n\n"
        "model = AutoPeftModelForCausalLM.from_pretrained(",
        python_text(card.name), ")\n");
  if (is_flamingo(card))
    return card.trained_part
               ? "import torch\n\n# model: from open_flamingo.create_model_and_transforms(...)\n"
                 "model.load_state_dict(torch.load(\"checkpoint.pt\"), strict=False)\n"
               : "from safetensors.torch import load_file\n\n# model: from "
                 "open_flamingo.create_model_and_transforms(...)\n"
                 "model.load_state_dict(load_file(\"model.safetensors\"), strict=False)\n";
  if (library(card) == "transformers" && !card.trained_part)
    return str("from transformers import ", auto_class(card), "\n\nmodel = ", auto_class(card),
               ".from_pretrained(", python_text(card.name), ")\n");
  return "from safetensors.torch import load_file\n\n"
         "state = load_file(\"model.safetensors\")\n";
}

// ---- how it was trained ----

using Rows = std::vector<std::pair<std::string, std::string>>;

// Those of these keys that the configuration has: "lr 0.0001, weight_decay 0.1".
std::string settings(const config::Value* block, const std::vector<std::string>& keys) {
  std::vector<std::string> parts;
  for (const std::string& key : keys)
    if (const config::Value* value = block ? block->at(key) : nullptr;
        value && value->is_scalar() && !value->is_null())
      parts.push_back(str(key, " ", value->scalar_text()));
  return join(parts);
}

// The kinds of data with what they count, without their places.
std::string data_of(const config::Value& config) {
  const config::Value* data = config.at("data");
  if (!data || !data->as<config::Map>()) return "";
  std::vector<std::string> parts;
  for (const auto& [name, source] : *data->as<config::Map>()) {
    if (name == "batches" && !source.is_null()) parts.emplace_back("prepared batches");
    if (!source.as<config::Map>() || !source.at("batch_size")) continue;
    const std::string how = settings(&source, {"batch_size", "weight", "num_samples", "tokens"});
    parts.push_back(how.empty() ? name : str(name, " (", how, ")"));
  }
  return join(parts, "; ");
}

Rows training_of(const std::string& checkpoint) {
  Rows rows;
  const std::string file = checkpoint::manifest_path(checkpoint);
  if (checkpoint.empty() || !path_exists(file)) return rows;
  const checkpoint::Manifest manifest = checkpoint::read_manifest(file);
  rows.emplace_back("steps", std::to_string(manifest.step));
  rows.emplace_back("ranks", std::to_string(manifest.world_size));
  for (const auto& [name, value] : manifest.metrics) rows.emplace_back(name, str(value));
  const auto config = config_of(checkpoint);
  if (!config) return rows;
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) rows.emplace_back(name, text);
  };
  add("data", data_of(*config));
  add("optimizer", settings(config->at("train.optimizer"), {"type", "lr", "eps", "weight_decay"}));
  add("schedule", settings(config->at("train.schedule"), {"type", "warmup_steps", "min_lr"}));
  add("gradient clipping", settings(config->at("train.clip"), {"norm", "value"}));
  add("precision", settings(config->at("strategy.mixed_precision"), {"param", "reduce", "buffer"}));
  add("adapters", settings(config->at("model.lora"), {"rank", "alpha", "dropout"}));
  add("seed", settings(config->at("run"), {"seed"}));
  return rows;
}

// ---- what it scores ----

using Scores = std::vector<report::LoggedScore>;

// The last parts, RUN/checkpoints/step_N: a run may have moved since.
std::string end_of(const std::string& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path above = whole.parent_path(), run = above.parent_path();
  return shown_bytes((run.filename() / above.filename() / whole.filename()).string());
}

// What `floe eval` has found of this checkpoint, in the folder of its run.
Scores scores_of(const std::string& checkpoint) {
  const std::string run = checkpoint.empty() ? "" : checkpoint::run_of(checkpoint);
  const std::string file = str(run, "/", report::kScoresFolder, "/", report::kScoresFile);
  if (run.empty() || !path_exists(file)) return {};
  try {
    Scores scores = report::read_scores(file);
    std::erase_if(scores, [&](const report::LoggedScore& score) {
      return !score.mean || end_of(score.checkpoint) != end_of(checkpoint);
    });
    return scores;
  } catch (const DataError& error) {
    log::warn("the model card has no scores: ", error.what());
    return {};
  }
}

std::string shots_text(const report::LoggedScore& score) {
  return score.metric == "perplexity" ? "" : counted(score.shots, "shot");
}

// The block `model-index` of the hub.
void write_index(std::ostream& out, const ModelCard& card, const Scores& scores) {
  if (scores.empty()) return;
  const std::string task = pipeline_tag(card);
  out << "model-index:\n- name: " << yaml_text(card.name) << "\n  results:\n";
  for (const report::LoggedScore& score : scores) {
    out << "  - task:\n      type: " << (task.empty() ? "other" : task) << "\n    dataset:\n"
        << "      name: " << yaml_text(score.task) << "\n      type: " << yaml_text(score.task)
        << "\n    metrics:\n    - type: " << yaml_text(score.metric)
        << "\n      value: " << config::number_text(*score.mean) << "\n";
    if (const std::string shots = shots_text(score); !shots.empty())
      out << "      name: " << yaml_text(str(score.metric, ", ", shots)) << "\n";
  }
}

void write_front_matter(std::ostream& out, const ModelCard& card, const std::string& base,
                        const Scores& scores) {
  const std::string tag = pipeline_tag(card);
  out << "---\nlibrary_name: " << library(card) << "\n";
  if (!card.license.empty()) out << "license: " << yaml_text(card.license) << "\n";
  if (!base.empty()) out << "base_model: " << yaml_text(base) << "\n";
  if (!tag.empty()) out << "pipeline_tag: " << tag << "\n";
  out << "tags:\n- floe\n";
  if (is_flamingo(card)) out << "- flamingo\n";
  if (card.adapters) out << "- lora\n";
  write_index(out, card, scores);
  out << "---\n" << kCardMark << " " << kVersion << " -->\n\n";
}

void write_scores(std::ostream& out, const Scores& scores) {
  if (scores.empty()) return;
  out << "\n## Scores\nMeasured by `floe eval` on the checkpoint that was exported.\n\n"
      << "| task | metric | | score | 95% |\n| --- | --- | --- | --- | --- |\n";
  for (const report::LoggedScore& score : scores)
    out << "| " << markdown(score.task) << " | " << markdown(score.metric) << " | "
        << shots_text(score) << " | " << *score.mean << " | "
        << (score.interval ? str(score.interval->first, " to ", score.interval->second) : "")
        << " |\n";
}

}  // namespace

void require_license(const std::string& license) {
  const bool plain =
      license.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.") == std::string::npos;
  require<ConfigError>(plain && !license.empty(), "export: --license is '", license,
                       "', but must be an identifier of the hub, such as apache-2.0, or other");
}

std::string model_card(const ModelCard& card) {
  const std::string base = hub_name(card.model ? card.model->config.lm : card.base);
  // Averages are other weights than those that were evaluated.
  const auto scores = card.ema ? Scores() : scores_of(card.checkpoint);
  std::ostringstream out;
  write_front_matter(out, card, base, scores);
  out << "# " << markdown(card.name) << "\n\nThis folder holds " << card.exported.what << ": "
      << card.exported.num_tensors << " tensors, " << format_bytes(card.exported.bytes)
      << ", exported by floe " << kVersion << ".";
  if (card.ema) out << " The weights are averages over the steps of training (EMA).";
  out << "\n";
  if (!base.empty()) out << "\nTraining began from `" << base << "`.\n";
  out << "\n```python\n" << usage(card) << "```\n";
  if (const Rows rows = training_of(card.checkpoint); !rows.empty()) {
    out << "\n## Training\n| | |\n| --- | --- |\n";
    for (const auto& [name, text] : rows)
      out << "| " << markdown(name) << " | " << markdown(text) << " |\n";
  }
  write_scores(out, scores);
  out << "\n## Licence\n"
      << (card.license.empty() ? "Not stated. What the base model's licence asks for holds here "
                                 "too; add `license:` to the first lines of this file."
                               : str("`", card.license, "`, as stated when it was exported."))
      << "\n";
  return out.str();
}

bool is_model_card(const std::string& text) { return text.find(kCardMark) != std::string::npos; }

}  // namespace floe::cli
