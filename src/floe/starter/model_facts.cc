#include "floe/starter/model_facts.h"

#include <filesystem>
#include <map>

#include "floe/core/bytes.h"
#include "floe/core/dtype.h"
#include "floe/core/error.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/models/decoders/decoder_spec.h"
#include "floe/models/flamingo/exported_flamingo.h"
#include "floe/models/registry.h"
#include "floe/models/vision/vision_files.h"

namespace floe::starter {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// How to get a model of the hub, such as facebook/opt-125m.
std::string how_to_fetch(const std::string& name) {
  const std::size_t slash = name.find('/');
  const bool of_hub = slash != std::string::npos && slash > 0 && slash + 1 < name.size() &&
                      name.find('/', slash + 1) == std::string::npos && name.front() != '.';
  return of_hub ? str("fetch it from the Hugging Face hub with 'hf download ", name,
                      " --local-dir ", name.substr(slash + 1), "' and name that folder")
                : "name a Hugging Face folder of a language model";
}

models::HfConfig config_of_folder(const std::string& folder) {
  require<ConfigError>(is_there(folder), "init: there is no folder '", folder, "'; ",
                       how_to_fetch(folder));
  const std::string file = folder + "/config.json";
  require<ConfigError>(is_there(file), "init: '", folder,
                       "' is no Hugging Face folder of a language model: it has no config.json");
  require<ConfigError>(!models::is_exported_flamingo(folder), "init: '", folder,
                       "' is a Flamingo that was exported; name the folder of its language model, "
                       "with --vision, and set model.weights to '",
                       folder, "' afterwards");
  return {models::lm_config(folder), file};
}

void look_at_weights(const std::string& folder, ModelFacts& facts) {
  std::string file;
  try {
    file = find_weights(folder);
  } catch (const DataError& error) {
    throw ConfigError(str("init: '", folder,
                          "' has no weights to begin from (model.safetensors, pytorch_model.bin, "
                          "or an index of several files): ",
                          error.what()));
  }
  const auto source = open_tensors(file);
  std::map<std::int64_t, DType, std::greater<>> dtypes;  // the one with most bytes first
  std::map<DType, std::int64_t> bytes;
  for (const std::string& name : source->names()) {
    const TensorInfo& tensor = *source->find(name);
    bytes[tensor.dtype] += tensor.bytes();
    facts.weight_bytes += tensor.bytes();
  }
  for (const auto& [dtype, count] : bytes) dtypes.emplace(count, dtype);
  std::vector<std::string> names;
  for (const auto& [count, dtype] : dtypes) names.emplace_back(name_of(dtype));
  facts.weight_dtypes = join(names, " and ");
}

void look_at_decoder(const models::DecoderSpec& spec, ModelFacts& facts) {
  facts.vocab = spec.vocab;
  facts.dim = spec.dim;
  facts.layers = spec.layers;
  facts.tied = spec.tied;
  facts.learned_positions = spec.positions == models::Positions::learned;
  facts.context =
      facts.learned_positions ? spec.position_rows - spec.position_offset : spec.context;
  const models::DecoderNames& names = spec.names;
  if (spec.qkv == models::QkvKind::separate)
    facts.lora_targets = {"*." + names.q, "*." + names.v};
  else
    facts.lora_targets = {"*." + names.qkv};
}

void look_at_tokenizer(const ModelFolders& folders, ModelFacts& facts) {
  std::string folder = folders.tokenizer;
  if (folder.empty())
    for (const char* file : {"tokenizer.json", "tokenizer.model", "vocab.json"})
      if (is_there(folders.lm + "/" + file)) folder = folders.lm;
  if (folder.empty()) return;
  require<ConfigError>(is_there(folder), "init: there is no tokenizer '", folder,
                       "'; name its folder with --tokenizer DIR");
  facts.tokenizer = token::load_tokenizer(folder);
  if (facts.is_flamingo()) facts.tokens = token::add_flamingo_tokens(*facts.tokenizer);
}

void look_at_tower(const std::string& path, ModelFacts& facts) {
  require<ConfigError>(is_there(path), "init: there is no image tower '", path,
                       "'; name a folder or file of open_clip, Hugging Face or OpenAI with "
                       "--vision");
  const models::VisionFiles files = models::open_vision(path);
  require<ConfigError>(files.source != nullptr, "init: the image tower '", path,
                       "' has a configuration, but no weights; put them into the folder");
  const models::VisionSpec& spec = files.spec;
  facts.image_size = static_cast<int>(spec.image_size);
  facts.tower = str("ViT of ", spec.layers, " layers, pictures of ", spec.image_size, "x",
                    spec.image_size, " in patches of ", spec.patch);
}

}  // namespace

ModelFacts look_at_model(const ModelFolders& folders) {
  ModelFacts facts;
  const models::HfConfig config = config_of_folder(folders.lm);
  const models::ModelFamily& family = models::family_of(config);
  facts.family = family.model_type;
  if (!folders.vision.empty())
    facts.type = models::ModelConfig::Type::flamingo;
  else if (!family.decoder)
    facts.type = models::ModelConfig::Type::from_config;
  if (family.decoder || facts.is_flamingo()) look_at_decoder(models::decoder_spec(config), facts);
  look_at_weights(folders.lm, facts);
  look_at_tokenizer(folders, facts);
  if (facts.is_flamingo()) look_at_tower(folders.vision, facts);
  return facts;
}

std::string ModelFacts::text() const {
  std::string out = family;
  if (layers > 0)
    out += str(", ", counted(layers, "layer"), " of width ", dim, ", vocabulary of ", vocab,
               tied ? ", embedding tied to its head" : "");
  out += str("; weights ", format_bytes(weight_bytes), " in ", weight_dtypes);
  if (context > 0) out += str("; ", context, " positions");
  if (tokenizer) out += str("; tokenizer of ", tokenizer->size(), " tokens");
  return out;
}

}  // namespace floe::starter
