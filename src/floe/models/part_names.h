// Which part of a model a parameter or module belongs to, by its name.
#pragma once

#include <string>
#include <string_view>

namespace floe::models {

inline constexpr std::string_view kLanguagePart = "lang_encoder.";  // of a Flamingo
inline constexpr std::string_view kVisionPart = "vision_encoder.";

inline bool is_vision(std::string_view name) { return name.starts_with(kVisionPart); }
// What a Flamingo adds to its language model and image tower.
inline bool is_flamingo_own(std::string_view name) {
  return name.starts_with("perceiver.") ||
         name.find(".gated_cross_attn_layer.") != std::string_view::npos;
}
inline bool is_adapter(std::string_view name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}
// Trained rows of an embedding (Note [Trained rows]).
inline bool is_rows(std::string_view name) { return name.ends_with(".rows"); }

inline void erase_all(std::string& name, std::string_view part) {
  for (auto at = name.find(part); at != std::string::npos; at = name.find(part, at))
    name.erase(at, part.size());
}

// As the language model's own files have it:
// "lang_encoder.model.layers.3.decoder_layer.mlp.up_proj" → "model.layers.3.mlp.up_proj".
inline std::string hf_name(std::string name) {
  if (name.starts_with(kLanguagePart)) name.erase(0, kLanguagePart.size());
  erase_all(name, ".decoder_layer");
  return name;
}

}  // namespace floe::models
