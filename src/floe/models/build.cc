#include "floe/models/build.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "floe/core/error.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/flamingo/exported_flamingo.h"
#include "floe/models/flamingo/flamingo.h"
#include "floe/models/lora/lora.h"
#include "floe/models/registry.h"
#include "floe/models/weights/weights.h"

namespace floe::models {
namespace {

namespace fs = std::filesystem;

HfConfig read_lm_config(const ModelConfig& config) {
  const std::string file = config.lm + "/config.json";
  require<ConfigError>(fs::exists(file), "model.lm: ", config.lm,
                       " is no Hugging Face folder; it has no config.json");
  return {lm_config(config.lm), file};
}

bool has_weights(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto extension = entry.path().extension();
    if (extension == ".safetensors" || extension == ".bin") return true;
  }
  return false;
}

std::shared_ptr<const TensorSource> open_lm(const ModelConfig& config) {
  if (is_exported_flamingo(config.lm)) {
    auto weights = exported_lm_weights(config.lm);
    require<ConfigError>(weights || config.random_init, "model.lm: ", config.lm,
                         " is the trained part of a Flamingo, without its language model; name the "
                         "frozen parts with model.lm=PATH and model.vision=PATH");
    return weights;
  }
  if (has_weights(config.lm)) return open_tensors(find_weights(config.lm));
  require<ConfigError>(
      config.random_init, "model.lm: ", config.lm,
      " has no weights (model.safetensors, pytorch_model.bin or an index of shards); "
      "set model.random_init=true to start from random ones");
  return nullptr;
}

bool has_tokenizer(const std::string& folder) {
  constexpr std::array kFiles{"tokenizer.json", "tokenizer.model", "vocab.json"};
  return std::any_of(kFiles.begin(), kFiles.end(),
                     [&](const char* file) { return fs::exists(folder + "/" + file); });
}

std::unique_ptr<token::Tokenizer> open_tokenizer(const ModelConfig& config) {
  if (config.tokenizer.empty())
    return has_tokenizer(config.lm) ? token::load_tokenizer(config.lm) : nullptr;
  // A wrong setting, after which no launcher starts the job again.
  require<ConfigError>(!fs::is_directory(config.tokenizer) || has_tokenizer(config.tokenizer),
                       "model.tokenizer: ", config.tokenizer,
                       " has none of tokenizer.json, tokenizer.model and vocab.json; name the "
                       "folder or file of a tokenizer");
  return token::load_tokenizer(config.tokenizer);
}

// Ids and vocabulary from the tokenizer, or from the configuration.
void choose_tokens(const ModelConfig& config, const std::optional<token::FlamingoTokens>& tokens,
                   FlamingoSpec& spec) {
  if (tokens) {
    spec.media_token = tokens->image;
    spec.endofchunk_token = tokens->endofchunk;
    spec.lm.vocab = tokens->size;
  }
  const auto choose = [&](const char* key, const std::optional<std::int64_t>& given,
                          std::int64_t& id) {
    require<ConfigError>(
        given || tokens, "model.", key,
        " is not set and there is no tokenizer to take it from; set one of the two");
    if (!given) return;
    require<ConfigError>(!tokens || *given == id, "model.", key, " is ", *given,
                         ", but the tokenizer has ", id,
                         "; remove the key, or name the tokenizer it belongs to");
    id = *given;
  };
  choose("media_token_id", config.media_token_id, spec.media_token);
  choose("endofchunk_token_id", config.endofchunk_token_id, spec.endofchunk_token);
  spec.lm.vocab = std::max({spec.lm.vocab, spec.media_token + 1, spec.endofchunk_token + 1});
}

// Without tokens and image tower.
FlamingoSpec flamingo_spec(const ModelConfig& config, const HfConfig& lm) {
  FlamingoSpec spec{.lm = decoder_spec(lm),
                    .perceiver = config.perceiver,
                    .cross_attention = config.cross_attn,
                    .cross_attention_every = config.cross_attn_every_n_layers,
                    .vision_tokens_after_norm = config.vision_tokens_after_ln_post,
                    .only_immediate_media = config.only_attend_immediate_media,
                    .freeze_embeddings = config.freeze_lm_embeddings};
  if (config.dropout == ModelConfig::Dropout::none) remove_dropout(spec.lm);
  return spec;
}

// A language model alone.
std::shared_ptr<LanguageModel> build_lm(const ModelConfig& config, const HfConfig& lm) {
  const ModelFamily& family = family_of(lm);
  require<ConfigError>(config.type == ModelConfig::Type::from_config || family.decoder,
                       "model.type is causal_lm, but ", lm.file(), " is of a '", family.model_type,
                       "', which does not continue text; set model.type to auto");
  return family.build(lm, config.dropout == ModelConfig::Dropout::config);
}

VisionFiles open_tower(const ModelConfig& config) {
  VisionFiles files = open_vision(config.vision);
  require<ConfigError>(files.source || config.random_init, "model.vision: ", config.vision,
                       is_exported_flamingo(config.vision)
                           ? " is the trained part of a Flamingo, without its image tower; name "
                             "the frozen parts with model.lm=PATH and model.vision=PATH"
                           : " has no weights; set model.random_init=true to start from random "
                             "ones");
  return files;
}

// What trains when nothing else is said. Adapters train instead of what they are put on; what a
// Flamingo adds to its parts trains beside them.
void choose_trained(const ModelConfig& config, BuiltModel& built) {
  std::vector<std::string> patterns;
  if (config.lora) patterns = {"*.lora_A.weight", "*.lora_B.weight"};
  if (!config.lora || config.type == ModelConfig::Type::flamingo)
    for (const std::string& pattern : built.model->trained_by_default())
      patterns.push_back(pattern);
  nn::set_trainable(*built.module, patterns);
}

// Where the parameters come from.
void find_weights_of(const ModelConfig& config, std::uint64_t seed, WeightFiles files,
                     const std::shared_ptr<const TensorSource>& trained,
                     const std::string& trained_path, BuiltModel& built) {
  files.lm = open_lm(config);
  if (!config.weights.empty()) files.weights = open_trained_part(config.weights);
  if (trained) {
    files.weights_path = trained_path;
    files.weights = files.weights
                        ? std::make_shared<MergedSource>(std::vector{trained, files.weights})
                        : trained;
  }
  const auto assembled = assemble_weights(*built.model, files, seed);
  built.of_base =
      assembled->names_from({files.lm.get(), files.vision ? files.vision->source.get() : nullptr});
  built.source = assembled;
}

}  // namespace

BuiltModel build_model(const ModelConfig& config, std::uint64_t seed,
                       const std::shared_ptr<const TensorSource>& trained,
                       const std::string& trained_path) {
  BuiltModel built;
  WeightFiles files{.weights_path = config.weights, .lm_path = config.lm};
  const HfConfig lm = read_lm_config(config);
  std::unique_ptr<token::Tokenizer> tokenizer;
  std::shared_ptr<LanguageModel> model;
  if (config.type == ModelConfig::Type::flamingo) {
    FlamingoSpec spec = flamingo_spec(config, lm);
    tokenizer = open_tokenizer(config);
    if (tokenizer) built.tokens = token::add_flamingo_tokens(*tokenizer);
    files.vision = open_tower(config);
    spec.vision = files.vision->spec;
    choose_tokens(config, built.tokens, spec);
    model = std::make_shared<Flamingo>(spec);
  } else {
    model = build_lm(config, lm);
    // Only a decoder meets text in floe: what lies beside another model need not be readable.
    if (model->decoder() || !config.tokenizer.empty()) tokenizer = open_tokenizer(config);
  }
  built.tokenizer = std::move(tokenizer);
  built.model = model.get();
  built.module = std::dynamic_pointer_cast<nn::Module>(model);

  if (config.lora) {
    add_lora(*built.module, *config.lora);
    if (!config.lora->weights.empty()) {
      files.adapters = open_peft_weights(config.lora->weights, *built.module);
      files.adapters_path = config.lora->weights;
    }
  }
  choose_trained(config, built);
  if (!config.skip_init)
    find_weights_of(config, seed, std::move(files), trained, trained_path, built);
  return built;
}

std::vector<std::string> base_files(const ModelConfig& config) {
  std::vector<std::string> paths;
  std::error_code ignored;
  if (fs::is_directory(config.lm, ignored) && has_weights(config.lm)) paths.push_back(config.lm);
  if (!config.vision.empty() && open_vision(config.vision).source) paths.push_back(config.vision);
  return paths;
}

}  // namespace floe::models
