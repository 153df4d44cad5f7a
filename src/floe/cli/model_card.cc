#include "floe/cli/model_card.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "floe/core/bytes.h"
#include "floe/io/file.h"
#include "floe/io/json_text.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;
using models::ModelConfig;

// "facebook/opt-1.3b" when the folder's configuration says so; a path of some machine does not.
std::string hub_name(const std::string& folder) {
  const std::string file = folder + "/config.json";
  std::error_code ignored;
  if (folder.empty() || !fs::exists(file, ignored)) return "";
  const auto config = parse_json(read_text(file, 1 << 24), file);
  const auto found = config.find("_name_or_path");
  if (found == config.end() || !found->is_string()) return "";
  const auto name = found->get<std::string>();
  const bool plain = name.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789-_./") == name.npos;
  const auto slash = name.find('/');
  const bool one_slash = slash != name.npos && slash > 0 && name.find('/', slash + 1) == name.npos;
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

std::string usage(const ModelCard& card) {
  if (card.adapters)
    return "from peft import AutoPeftModelForCausalLM\n\n"
           "model = AutoPeftModelForCausalLM.from_pretrained(\"" +
           card.name + "\")\n";
  if (is_flamingo(card))
    return card.trained_part
               ? "import torch\n\n# model: from open_flamingo.create_model_and_transforms(...)\n"
                 "model.load_state_dict(torch.load(\"checkpoint.pt\"), strict=False)\n"
               : "from safetensors.torch import load_file\n\n# model: from "
                 "open_flamingo.create_model_and_transforms(...)\n"
                 "model.load_state_dict(load_file(\"model.safetensors\"), strict=False)\n";
  if (library(card) == "transformers" && !card.trained_part)
    return "from transformers import AutoModelForCausalLM\n\n"
           "model = AutoModelForCausalLM.from_pretrained(\"" +
           card.name + "\")\n";
  return "from safetensors.torch import load_file\n\n"
         "state = load_file(\"model.safetensors\")\n";
}

}  // namespace

std::string model_card(const ModelCard& card) {
  const std::string base = hub_name(card.model ? card.model->config.lm : card.base);
  std::ostringstream out;
  out << "---\nlibrary_name: " << library(card) << "\n";
  if (!base.empty()) out << "base_model: " << base << "\n";
  out << "tags:\n- floe\n";
  if (is_flamingo(card)) out << "- flamingo\n";
  if (card.adapters) out << "- lora\n";
  out << "---\n\n# " << card.name << "\n\n";
  out << "This folder holds " << card.exported.what << ": " << card.exported.num_tensors
      << " tensors, " << format_bytes(card.exported.bytes) << ", exported by floe.";
  if (card.ema) out << " The weights are averages over the steps of training (EMA).";
  out << "\n";
  if (!base.empty()) out << "\nTraining began from `" << base << "`.\n";
  out << "\n```python\n" << usage(card) << "```\n";
  return out.str();
}

}  // namespace floe::cli
