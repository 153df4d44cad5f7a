#include "floe/models/registry.h"

#include <algorithm>

#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/models/decoders/decoder.h"

namespace floe::models {

ModelFamily bert_family();  // encoders/bert.cc

namespace {

ModelFamily decoder(const char* model_type, DecoderSpec (*describe)(const HfConfig&)) {
  const auto spec_of = [model_type, describe](const HfConfig& config) {
    DecoderSpec spec = describe(config);
    spec.family = model_type;
    return completed(std::move(spec), config.file());
  };
  return {.model_type = model_type,
          .architectures = {},
          .auto_class = "AutoModelForCausalLM",
          .build =
              [spec_of](const HfConfig& config, bool dropout) {
                DecoderSpec spec = spec_of(config);
                if (!dropout) remove_dropout(spec);
                return std::make_shared<CausalLm>(spec);
              },
          .decoder = spec_of};
}

const std::vector<ModelFamily>& families() {
  // clang-format off
  static const std::vector<ModelFamily> families{
      bert_family(),
      decoder("gpt_neox", gpt_neox_spec),
      decoder("llama", llama_spec),
      decoder("mistral", mistral_spec),
      decoder("mosaic_gpt", mosaic_gpt_spec),
      decoder("mpt", mpt_spec),
      decoder("opt", opt_spec),
      decoder("qwen2", qwen2_spec),
  };
  // clang-format on
  return families;
}

std::vector<std::string> names_of(bool (*wanted)(const ModelFamily&)) {
  std::vector<std::string> names;
  for (const ModelFamily& family : families())
    if (wanted(family)) names.push_back(family.model_type);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

const ModelFamily* find_family(const std::string& model_type) {
  for (const ModelFamily& family : families())
    if (family.model_type == model_type) return &family;
  return nullptr;
}

const ModelFamily& family_of(const HfConfig& config) {
  const std::string type = config.text("model_type", "");
  const ModelFamily* family = find_family(type);
  if (!family) {
    const auto names = names_of([](const ModelFamily&) { return true; });
    throw ConfigError(str(config.file(), ": 'model_type' is '", type, "'; floe has ",
                          join(names, ", "), did_you_mean(type, names),
                          " (docs/adding-a-model.md tells how to add one)"));
  }
  const std::vector<std::string> named = config.texts("architectures");
  const auto& known = family->architectures;
  config.only(
      named.empty() || known.empty() ||
          std::find_first_of(named.begin(), named.end(), known.begin(), known.end()) != named.end(),
      "architectures", join(known, " or "));
  return *family;
}

DecoderSpec decoder_spec(const HfConfig& config) {
  const ModelFamily& family = family_of(config);
  require<ConfigError>(
      family.decoder != nullptr, config.file(), ": 'model_type' is '", family.model_type,
      "', which is no decoder; a Flamingo needs one (",
      join(names_of([](const ModelFamily& other) { return other.decoder != nullptr; }), ", "), ")");
  return family.decoder(config);
}

}  // namespace floe::models
