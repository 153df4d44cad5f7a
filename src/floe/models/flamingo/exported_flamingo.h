// A Flamingo in one folder, as `floe export` writes it: the state dict of OpenFlamingo, and a
// config.json ("model_type": "open_flamingo") that describes its parts. Such a folder can stand for
// each of them: as `lm`, as `vision` and as `weights` of a model.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "floe/io/tensors/tensor_source.h"
#include "floe/models/flamingo/flamingo.h"
#include "floe/models/model_config.h"

namespace floe::models {

bool is_exported_flamingo(const std::string& folder);

// The language model's configuration: config.json of the folder, or the part of an exported
// Flamingo's that describes it. Throws ConfigError or DataError.
nlohmann::ordered_json lm_config(const std::string& folder);

// Of an exported Flamingo. `lm_weights` has Hugging Face's names, `vision_weights` open_clip's
// without a prefix; null when the folder holds the trained part alone.
nlohmann::ordered_json exported_vision_config(const std::string& folder);
std::shared_ptr<const TensorSource> exported_lm_weights(const std::string& folder);
std::shared_ptr<const TensorSource> exported_vision_weights(const std::string& folder);

// config.json. `lm` and `vision` are the parts' own configurations, as files of theirs have them;
// adapters are named where `with_adapters`, since only then their tensors stand beside it.
nlohmann::ordered_json exported_config(const ModelConfig& config, const FlamingoSpec& spec,
                                       nlohmann::ordered_json lm, nlohmann::ordered_json vision,
                                       bool with_adapters);

// The block `model:` that builds the model of the folder again, all paths being the folder itself.
nlohmann::ordered_json exported_model_block(const std::string& folder);

}  // namespace floe::models
