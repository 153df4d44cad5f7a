// From the files that people have to the parameters of a model, and what does not fit.
//
// Note [Names]
// A parameter is looked for in `weights` first, under OpenFlamingo's name (`lang_encoder.…`,
// `perceiver.…`) or Hugging Face's; then in the files of the language model under Hugging Face's
// name (files of the bare model lack its first part, as in `decoder.layers…` of OPT), or in those
// of the image tower. What no file has, though others of its kind are there, is missing.
//
// Note [Vocabulary]
// The input table, and a head of its own, have the tokenizer's number of rows. Longer ones in files
// are cut; missing rows are drawn from N(0, init_range), each a function of seed, name and place,
// so every world size gets the same ones. `rows` (Note [Trained rows]) are rows of that table.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "floe/models/language_model.h"
#include "floe/models/vision/vision_files.h"
#include "floe/models/weights/assembled_source.h"

namespace floe::models {

struct WeightFiles {
  std::shared_ptr<const TensorSource> weights;  // the trained part, or null
  std::string weights_path;
  std::shared_ptr<const TensorSource> lm;  // null: the language model starts anew
  std::string lm_path;
  std::optional<VisionFiles> vision;
  std::shared_ptr<const TensorSource> adapters;  // PEFT, under floe's names, or null
  std::string adapters_path;
};

// Every parameter that some file has; nothing is read yet. Throws one DataError for everything that
// is missing, superfluous, of another shape or no floating-point tensor (weight_defects.h), with
// the likely cause.
std::shared_ptr<const AssembledSource> assemble_weights(LanguageModel& model,
                                                        const WeightFiles& files,
                                                        std::uint64_t seed);

// A file of a trained part, whatever wraps the names in it (see unwrapped).
std::shared_ptr<const TensorSource> open_trained_part(const std::string& path);

}  // namespace floe::models
