// README.md of an exported folder, as the Hugging Face hub shows it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "floe/cli/export_request.h"
#include "floe/cli/used_model.h"

namespace floe::cli {

struct ModelCard {
  std::string name;  // of the folder
  ExportResult exported;
  std::optional<UsedModel> model;  // none: a checkpoint that does not tell
  std::string base;                // a Hugging Face folder; empty: none
  bool adapters = false;           // a PEFT folder
  bool trained_part = false;
  bool ema = false;
};

std::string model_card(const ModelCard& card);

}  // namespace floe::cli
