#include "floe/models/decoders/families.h"

#include <map>

#include "floe/core/error.h"
#include "floe/core/names.h"

namespace floe::models {

const nlohmann::json* HfConfig::find(const std::string& key) const {
  if (!values_.is_object()) return nullptr;
  const auto found = values_.find(key);
  return found == values_.end() || found->is_null() ? nullptr : &*found;
}

void HfConfig::wrong(const std::string& key, const std::string& wanted) const {
  const nlohmann::json* value = find(key);
  throw ConfigError(
      value ? str(file_, ": '", prefix_, key, "' is ", value->dump(), ", expected ", wanted)
            : str(file_, ": '", prefix_, key, "' is missing, expected ", wanted));
}

bool HfConfig::has(const std::string& key) const { return find(key) != nullptr; }
bool HfConfig::contains(const std::string& key) const {
  return values_.is_object() && values_.contains(key);
}
bool HfConfig::empty(const std::string& key) const {
  const nlohmann::json* value = find(key);
  return !value || (value->is_structured() && value->empty());
}
bool HfConfig::is_text(const std::string& key) const { return has(key) && find(key)->is_string(); }

std::int64_t HfConfig::integer(const std::string& key) const {
  const nlohmann::json* value = find(key);
  if (!value || !value->is_number_integer() || value->get<std::int64_t>() < 0 ||
      value->get<std::int64_t>() > (std::int64_t{1} << 40))
    wrong(key, "a whole number");
  return value->get<std::int64_t>();
}

std::int64_t HfConfig::integer(const std::string& key, std::int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}

std::int64_t HfConfig::side(const std::string& key, std::int64_t otherwise) const {
  const nlohmann::json* value = find(key);
  if (!value || !value->is_array()) return integer(key, otherwise);
  only(value->size() == 2 && (*value)[0] == (*value)[1], key, "a square");
  return HfConfig({{key, (*value)[0]}}, file_, prefix_).integer(key);
}

double HfConfig::number(const std::string& key, double otherwise) const {
  const nlohmann::json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_number()) wrong(key, "a number");
  return value->get<double>();
}

bool HfConfig::flag(const std::string& key, bool otherwise) const {
  const nlohmann::json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

std::string HfConfig::text(const std::string& key, const std::string& otherwise) const {
  const nlohmann::json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_string()) wrong(key, "text");
  return value->get<std::string>();
}

HfConfig HfConfig::section(const std::string& key) const {
  const nlohmann::json* value = find(key);
  if (value && !value->is_object()) wrong(key, "a table");
  return {value ? *value : nlohmann::json::object(), file_, prefix_ + key + "."};
}

Activation HfConfig::activation(const std::string& key, const std::string& otherwise) const {
  static const std::map<std::string, Activation> known{
      {"relu", Activation::relu},
      {"gelu", Activation::gelu},
      {"gelu_new", Activation::gelu_tanh},
      {"gelu_fast", Activation::gelu_tanh},
      {"gelu_pytorch_tanh", Activation::gelu_tanh},
      {"quick_gelu", Activation::quick_gelu},
      {"silu", Activation::silu},
      {"swish", Activation::silu},
  };
  const auto found = known.find(text(key, otherwise));
  if (found == known.end())
    wrong(key, "relu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, quick_gelu, silu or swish");
  return found->second;
}

void HfConfig::only(bool condition, const std::string& key, const std::string& what) const {
  if (!condition) wrong(key, what + ": floe computes nothing else");
}

nn::RotarySpec rotary_from(const HfConfig& config, std::int64_t dim, double default_theta) {
  const HfConfig newer = config.section("rope_parameters");
  nn::RotarySpec spec{.dim = dim};
  spec.theta = newer.number("rope_theta", config.number("rope_theta", default_theta));
  const std::string table = config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const HfConfig scaling = config.section(table);
  const std::string kind = scaling.text("rope_type", scaling.text("type", "default"));
  scaling.only(kind == "default" || kind == "linear" || kind == "llama3", "rope_type",
               "default, linear or llama3");
  if (kind == "default") return spec;
  nn::RotaryScaling stretched{.factor = scaling.number("factor", 1)};
  if (kind == "llama3") {
    stretched.kind = nn::RotaryScaling::Kind::llama3;
    stretched.low_freq_factor = scaling.number("low_freq_factor", 1);
    stretched.high_freq_factor = scaling.number("high_freq_factor", 4);
    stretched.original_context = scaling.number("original_max_position_embeddings", 8192);
  }
  spec.scaling = stretched;
  return spec;
}

namespace {

using Make = DecoderSpec (*)(const HfConfig&);
const std::map<std::string, Make>& decoder_families() {
  static const std::map<std::string, Make> families{
      {"opt", opt_spec},     {"gpt_neox", gpt_neox_spec},
      {"mpt", mpt_spec},     {"mosaic_gpt", mosaic_gpt_spec},
      {"llama", llama_spec}, {"mistral", mistral_spec},
      {"qwen2", qwen2_spec},
  };
  return families;
}

}  // namespace

bool is_decoder_family(const std::string& model_type) {
  return decoder_families().contains(model_type);
}

DecoderSpec decoder_spec(const nlohmann::json& config, const std::string& file) {
  const auto& families = decoder_families();
  const HfConfig values(config, file);
  const std::string type = values.text("model_type", "");
  const auto found = families.find(type);
  if (found == families.end()) {
    std::vector<std::string> names;
    for (const auto& [name, make] : families) names.push_back(name);
    throw ConfigError(str(file, ": 'model_type' is '", type, "'; floe has ", join(names, ", "),
                          did_you_mean(type, names),
                          " (docs/adding-a-model.md tells how to add one)"));
  }
  DecoderSpec spec = found->second(values);
  spec.family = type;
  if (spec.kv_heads == 0) spec.kv_heads = spec.heads;
  if (spec.heads > 0 && spec.head_dim == 0) {
    require<ConfigError>(spec.dim % spec.heads == 0, file, ": a width of ", spec.dim,
                         " cannot be split into ", spec.heads, " heads");
    spec.head_dim = spec.dim / spec.heads;
  }
  if (spec.embed_dim == 0) spec.embed_dim = spec.dim;
  require<ConfigError>(spec.heads > 0 && spec.kv_heads > 0 && spec.heads % spec.kv_heads == 0, file,
                       ": ", spec.heads, " heads cannot share ", spec.kv_heads, " key-value heads");
  require<ConfigError>(spec.vocab > 0 && spec.dim > 0 && spec.layers > 0, file,
                       ": vocabulary, width and number of layers must be at least 1");
  constexpr std::int64_t kMost = 1 << 24;  // products of two stay far from overflow
  for (const std::int64_t size : {spec.vocab, spec.dim, spec.layers, spec.heads, spec.head_dim,
                                  spec.mlp_dim, spec.embed_dim, spec.position_rows})
    require<ConfigError>(size <= kMost && spec.heads * spec.head_dim <= kMost, file,
                         ": a model with a size of ", size, " cannot be built; floe allows up to ",
                         kMost);
  // An odd number turns one feature more, as in transformers: features turn in pairs.
  require<ConfigError>(spec.rotary.dim + spec.rotary.dim % 2 <= spec.head_dim, file,
                       ": rotary positions over ", spec.rotary.dim, " features of a head with ",
                       spec.head_dim, ", which has not so many");
  return spec;
}

}  // namespace floe::models
