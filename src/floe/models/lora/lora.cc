#include "floe/models/lora/lora.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/hf_config.h"
#include "floe/models/weights/file_layouts.h"

namespace floe::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPeftPrefix = "base_model.model.";

// Linear layers that could have an adapter or have one, by path.
std::map<std::string, nn::Linear*> linears(nn::Module& model) {
  std::map<std::string, nn::Linear*> found;
  for (const auto& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    if (auto* linear = dynamic_cast<nn::Linear*>(item.value().get()))
      if (!item.key().ends_with(".lora_A") && !item.key().ends_with(".lora_B") &&
          !is_vision(item.key()))
        found[item.key()] = linear;
  return found;
}

bool targets(const std::string& pattern, const std::string& path) {
  if (glob_match(pattern, path)) return true;
  const bool plain = pattern.find_first_of("*?[") == std::string::npos;
  return plain && path.ends_with("." + pattern);
}

const nn::Linear& first_adapted(nn::Module& model) {
  for (const auto& [path, linear] : linears(model))
    if (linear->lora()) return *linear;
  throw ConfigError("the model has no adapters; configure model.lora");
}

// Everything in which PEFT's adapters can differ from y + scale · B A x.
void check_settings(const HfConfig& config) {
  config.only(config.text("peft_type", "LORA") == "LORA", "peft_type", "\"LORA\"");
  config.only(config.text("bias", "none") == "none", "bias", "\"none\"");
  for (const char* key : {"use_dora", "use_qalora", "lora_bias", "fan_in_fan_out"})
    config.only(!config.flag(key, false), key, "false");
  for (const char* key :
       {"modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication",
        "target_parameters", "trainable_token_indices", "alora_invocation_tokens", "use_bdlora",
        "arrow_config", "velora_config", "monteclora_config", "kasa_config", "megatron_config"})
    config.only(config.empty(key), key, "null or nothing in it");
  // These begin from other base weights than those in the model's files.
  if (config.is_text("init_lora_weights")) {
    const std::string init = config.text("init_lora_weights", "");
    config.only(init == "gaussian" || init == "orthogonal" || init == "eva", "init_lora_weights",
                "true, false, \"gaussian\", \"orthogonal\" or \"eva\"");
  }
}

}  // namespace

void add_lora(nn::Module& model, const LoraConfig& config) {
  const nn::LoraOptions options{config.rank, config.alpha, config.dropout, config.rslora};
  std::set<std::string> matched;
  std::vector<std::string> paths;
  for (const auto& [path, linear] : linears(model)) {
    paths.push_back(path);
    bool wanted = false;
    for (const std::string& target : config.targets)
      if (targets(target, path) || targets(target, hf_name(path))) {
        matched.insert(target);
        wanted = true;
      }
    if (wanted) linear->adapt(options);
  }
  // A plain target is most likely the misspelt end of a path.
  std::set<std::string> ends;
  for (const std::string& path : paths) ends.insert(path.substr(path.rfind('.') + 1));
  for (const std::string& target : config.targets) {
    const std::string near = did_you_mean(target, {ends.begin(), ends.end()});
    require<ConfigError>(matched.contains(target), "model.lora.targets: '", target,
                         "' matches no linear layer",
                         near.empty() ? did_you_mean_pattern(target, paths) : near);
  }
}

std::shared_ptr<const TensorSource> open_peft_weights(const std::string& folder,
                                                      nn::Module& model) {
  const std::string file = folder + "/adapter_config.json";
  require<ConfigError>(fs::exists(file), "model.lora.weights: ", folder,
                       " is no PEFT folder; it has no adapter_config.json");
  const HfConfig config(parse_json(read_text(file, 1 << 24), file), file);
  const nn::LoraOptions& own = *first_adapted(model).lora();
  check_settings(config);
  const auto same = [&](const char* key, double theirs, double ours) {
    require<ConfigError>(theirs == ours, file, ": '", key, "' is ", theirs, ", but model.lora has ",
                         ours, "; give both the same");
  };
  same("r", config.number("r", 8), static_cast<double>(own.rank));
  same("lora_alpha", config.number("lora_alpha", 8), own.alpha);
  same("use_rslora", config.flag("use_rslora", false), own.rank_stabilised);

  std::string weights = folder + "/adapter_model.safetensors";
  if (!fs::exists(weights)) weights = folder + "/adapter_model.bin";
  require<DataError>(fs::exists(weights), folder,
                     ": has neither adapter_model.safetensors nor adapter_model.bin");
  std::shared_ptr<const TensorSource> source = open_tensors(weights);
  std::map<std::string, std::string> ours;  // by Hugging Face's path
  for (const auto& [path, linear] : linears(model)) ours[hf_name(path)] = path;
  Renames renames;
  for (const std::string& name : source->names()) {
    std::string rest =
        name.starts_with(kPeftPrefix) ? name.substr(std::string(kPeftPrefix).size()) : name;
    const auto mark = rest.rfind(".lora_");
    std::string path = rest.substr(0, mark);
    const auto known = ours.find(hf_name(path));
    if (mark != std::string::npos && known != ours.end()) rest = known->second + rest.substr(mark);
    renames[rest] = name;
  }
  return std::make_shared<RenamedSource>(source, renames);
}

void merge_lora(nn::Module& model) {
  for (const auto& [path, linear] : linears(model)) linear->merge_lora();
}

std::vector<AdaptedLinear> adapted_linears(nn::Module& model) {
  std::vector<AdaptedLinear> adapted;
  for (const auto& [path, linear] : linears(model))
    if (linear->lora())
      adapted.push_back({path, linear->weight.size(1), linear->weight.size(0), *linear->lora()});
  return adapted;
}

}  // namespace floe::models
