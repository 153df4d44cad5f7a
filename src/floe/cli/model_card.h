// README.md of an exported folder, as the Hugging Face hub shows it: front matter for the hub, then
// for readers what the folder is, how the model was trained and what it scores. Nothing of the
// machine it was trained on: no paths.
#pragma once

#include <optional>
#include <string>

#include "floe/cli/commands/export_model.h"
#include "floe/cli/used_model.h"

namespace floe::cli {

struct ModelCard {
  std::string name;  // of the folder
  ExportResult exported;
  std::optional<UsedModel> model;  // none: a checkpoint that does not tell
  std::string checkpoint;          // whose weights they are; empty: none
  std::string base;                // a Hugging Face folder; empty: none
  std::string license;             // an identifier of the hub, such as apache-2.0; empty: not said
  bool adapters = false;           // a PEFT folder
  bool trained_part = false;
  bool ema = false;
};

// Throws ConfigError for a licence that is no identifier.
void require_license(const std::string& license);

std::string model_card(const ModelCard& card);

// Whether model_card has written it: others may be replaced only by who wrote them.
bool is_model_card(const std::string& text);

}  // namespace floe::cli
