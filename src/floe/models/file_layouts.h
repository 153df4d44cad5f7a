// What the files of other systems hold of a model: names, shapes and where the numbers come from.
// Order is that of registration. The input embedding is always one table, with its trained rows in
// their places (Note [Trained rows]).
#pragma once

#include <functional>
#include <vector>

#include "floe/models/language_model.h"
#include "floe/models/saved_tensor.h"
#include "floe/models/vision_files.h"

namespace floe::models {

// The language model alone, under Hugging Face's names, without what Flamingo put into it. Adapters are
// added to their weights. A tied head is left out, as transformers leaves it out.
std::vector<SavedTensor> language_model_layout(LanguageModel& model);

// What OpenFlamingo keeps in a checkpoint: parameters that train, the input embedding, and everything
// with "embed" in its name; of the image tower only what trains. A tied head is written under its own name as
// well. Adapters are tensors of their own.
// `trains` says which parameters do; null: those that require a gradient now.
std::vector<SavedTensor> trained_part_layout(
    LanguageModel& model, const std::function<bool(const nn::NamedParameter&)>& trains = nullptr);

// A whole state dict of OpenFlamingo. Its modules `old_decoder_blocks` and `gated_cross_attn_layers`
// are second names. Adapters are added to their weights.
std::vector<SavedTensor> flamingo_layout(LanguageModel& model);

// The image tower: `visual.…` of open_clip, or CLIPVisionModel of Hugging Face (with
// `visual_projection.weight` if the tower projects).
std::vector<SavedTensor> vision_layout(LanguageModel& model, VisionNames names);

}  // namespace floe::models
