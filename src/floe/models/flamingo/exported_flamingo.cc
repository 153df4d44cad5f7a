#include "floe/models/flamingo/exported_flamingo.h"

#include <filesystem>

#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/weights/file_layouts.h"

namespace floe::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::int64_t kMostConfigBytes = 1 << 24;
constexpr const char* kType = "open_flamingo";
// The keys of config.json that are those of the block `model:`.
constexpr const char* kModelKeys[] = {"cross_attn_every_n_layers",
                                      "perceiver",
                                      "cross_attn",
                                      "vision_tokens_after_ln_post",
                                      "only_attend_immediate_media",
                                      "freeze_lm_embeddings",
                                      "media_token_id",
                                      "endofchunk_token_id",
                                      "lora"};

std::string config_file(const std::string& folder) { return folder + "/config.json"; }

ordered_json read_exported_config(const std::string& file) {
  const std::string text = read_text(file, kMostConfigBytes);
  parse_json(text, file);  // with its checks and messages
  ordered_json config = ordered_json::parse(text);
  require<ConfigError>(config.is_object(), file,
                       ": is no JSON object; expected keys such as 'model_type'");
  return config;
}

bool is_flamingo(const ordered_json& config) {
  const auto type = config.find("model_type");
  return type != config.end() && *type == kType;
}

ordered_json part_config(const ordered_json& config, const std::string& file, const char* part) {
  const auto found = config.find(part);
  require<ConfigError>(found != config.end() && found->is_object(), file, ": has no '", part,
                       "', which describes a part of the Flamingo; export it again");
  return *found;
}

// The whole state dict; null when the folder has none.
std::shared_ptr<const TensorSource> open_whole(const std::string& folder) {
  std::shared_ptr<const TensorSource> source = open_tensors(find_weights(folder));
  for (const std::string& name : source->names())
    if (is_vision(name)) return source;
  return nullptr;
}

}  // namespace

bool is_exported_flamingo(const std::string& folder) {
  std::error_code ignored;
  const std::string file = config_file(folder);
  return fs::is_regular_file(file, ignored) && is_flamingo(read_exported_config(file));
}

ordered_json lm_config(const std::string& folder) {
  const std::string file = config_file(folder);
  ordered_json config = read_exported_config(file);
  return is_flamingo(config) ? part_config(config, file, "lang_encoder") : config;
}

ordered_json exported_vision_config(const std::string& folder) {
  return part_config(read_exported_config(config_file(folder)), config_file(folder),
                     "vision_encoder");
}

std::shared_ptr<const TensorSource> exported_lm_weights(const std::string& folder) {
  std::shared_ptr<const TensorSource> whole = open_whole(folder);
  if (!whole) return nullptr;
  Renames names;
  for (const std::string& name : whole->names()) {
    const bool second_name = name.starts_with(str(kLanguagePart, "old_decoder_blocks.")) ||
                             name.starts_with(str(kLanguagePart, "gated_cross_attn_layers."));
    if (name.starts_with(kLanguagePart) && !second_name && !is_flamingo_own(name))
      names[hf_name(name)] = name;
  }
  return std::make_shared<RenamedSource>(std::move(whole), names);
}

std::shared_ptr<const TensorSource> exported_vision_weights(const std::string& folder) {
  std::shared_ptr<const TensorSource> whole = open_whole(folder);
  if (!whole) return nullptr;
  const Renames names = names_below(*whole, kVisionPart);
  return std::make_shared<RenamedSource>(std::move(whole), names);
}

ordered_json exported_config(const ModelConfig& config, const FlamingoSpec& spec, ordered_json lm,
                             ordered_json vision, bool with_adapters) {
  ordered_json all{
      {"model_type", kType},
      {"cross_attn_every_n_layers", spec.cross_attention_every},
      {"perceiver",
       {{"depth", spec.perceiver.depth},
        {"dim_head", spec.perceiver.dim_head},
        {"heads", spec.perceiver.heads},
        {"num_latents", spec.perceiver.num_latents},
        {"ff_mult", spec.perceiver.ff_mult}}},
      {"cross_attn",
       {{"dim_head", spec.cross_attention.dim_head},
        {"heads", spec.cross_attention.heads},
        {"ff_mult", spec.cross_attention.ff_mult}}},
      {"vision_tokens_after_ln_post", spec.vision_tokens_after_norm},
      {"only_attend_immediate_media", spec.only_immediate_media},
      {"freeze_lm_embeddings", spec.freeze_embeddings},
      {"media_token_id", spec.media_token},
      {"endofchunk_token_id", spec.endofchunk_token},
  };
  if (with_adapters && config.lora)
    all["lora"] = {{"targets", config.lora->targets},
                   {"rank", config.lora->rank},
                   {"alpha", config.lora->alpha},
                   {"dropout", config.lora->dropout},
                   {"rslora", config.lora->rslora}};
  all["lang_encoder"] = std::move(lm);
  all["vision_encoder"] = std::move(vision);
  return all;
}

ordered_json exported_model_block(const std::string& folder) {
  const ordered_json config = read_exported_config(config_file(folder));
  ordered_json block{{"type", "flamingo"}, {"lm", folder}, {"vision", folder}, {"weights", folder}};
  for (const char* key : kModelKeys)
    if (const auto found = config.find(key); found != config.end()) block[key] = *found;
  return block;
}

}  // namespace floe::models
