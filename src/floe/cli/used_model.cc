#include "floe/cli/used_model.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/load/resume.h"
#include "floe/cli/options.h"
#include "floe/config/load.h"
#include "floe/config/yaml.h"
#include "floe/core/log.h"
#include "floe/data/sources/text_files.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/models/flamingo/exported_flamingo.h"
#include "floe/models/registry.h"
#include "floe/models/weights/assembled_source.h"
#include "floe/train/run_config.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kVocabularies{"tokenizer.json", "tokenizer.model",
                                                        "vocab.json"};

bool ends_with_any(const std::string& name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_vocabulary(const std::string& name) {
  return std::find(kVocabularies.begin(), kVocabularies.end(), name) != kVocabularies.end();
}

bool is_weights(const std::string& name) {
  return ends_with_any(name,
                       {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json"});
}

bool is_tar(const std::string& name) {
  return ends_with_any(name,
                       {".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4"});
}

PathKind kind_of_folder(const std::string& folder) {
  bool vocabulary = false, weights = false, tars = false, checkpoint = false, config = false;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    vocabulary = vocabulary || is_vocabulary(name);
    weights = weights || is_weights(name) || name == "checkpoint.pt";
    tars = tars || is_tar(name);
    config = config || name == "config.json" || name == "adapter_config.json";
    checkpoint =
        checkpoint || name == ".metadata" || name.ends_with(".distcp") || name == "floe.json";
  }
  require<ConfigError>(!error, "the folder '", folder, "' cannot be read: ", error.message());
  if (checkpoint) return PathKind::checkpoint;
  if (weights && config) return PathKind::model;
  if (weights) return PathKind::tensors;
  if (vocabulary) return PathKind::tokenizer;
  if (config) return PathKind::model;
  require<ConfigError>(
      tars, "the folder '", folder,
      "' is nothing that floe knows: no run folder (config.yaml, checkpoints/), no "
      "checkpoint (.metadata), and it has no weights, no tokenizer and no tar "
      "shards");
  return PathKind::shards;
}

// The first bytes of the file, fewer when it is shorter.
std::string beginning_of(const std::string& path, std::size_t num_bytes) {
  const File file(path);
  std::string bytes(std::min<std::size_t>(num_bytes, static_cast<std::size_t>(file.size())), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

PathKind kind_of_file(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (is_tar(name) || data::is_json_lines(name)) return PathKind::shards;
  if (is_vocabulary(name)) return PathKind::tokenizer;
  if (ends_with_any(name, {".yaml", ".yml"})) return PathKind::yaml;
  if (is_weights(name)) return PathKind::tensors;
  if (name.ends_with(".json")) return PathKind::yaml;  // JSON is YAML
  if (ends_with_any(name, {".pt", ".pth", ".ckpt"})) return PathKind::checkpoint;
  if (name.ends_with(".model")) return PathKind::tokenizer;
  const std::string bytes = beginning_of(path, 512);
  const bool tar = bytes.size() >= 262 && std::string_view(bytes).substr(257, 5) == "ustar";
  if (tar || bytes.starts_with("\x1f\x8b")) return PathKind::shards;
  if (bytes.starts_with("PK\x03\x04")) return PathKind::checkpoint;
  if (bytes.size() > 8 && bytes[8] == '{') return PathKind::tensors;  // safetensors
  throw ConfigError(str("'", path,
                        "' is nothing that floe knows: no YAML, no safetensors or torch file, no "
                        "tokenizer and no tar shard"));
}

// ++key=value, ~key and key=value, where key is words joined by dots.
bool looks_like_change(const std::string& word) {
  std::string_view rest = word;
  const bool removes = rest.starts_with("~");
  rest.remove_prefix(removes ? 1 : rest.starts_with("++") ? 2 : 0);
  const auto key = rest.substr(0, rest.find('='));
  const bool has_value = key.size() < rest.size();
  return !key.empty() && (removes || has_value) &&
         key.find_first_of("/ \t:{}*\\") == std::string::npos;
}

// Of a training configuration, what building its model depends on; the rest is there and not read.
struct UsedConfig {
  models::ModelConfig model;
  config::Value run, dist, data, train, phases, strategy, precision, checkpoint, log;
};

void describe(config::Schema<UsedConfig>& s) {
  using C = UsedConfig;
  s.section("model", &C::model, "The model");
  const std::string unread = "Of training";
  s.field("run", &C::run, unread);
  s.field("dist", &C::dist, unread);
  s.field("data", &C::data, unread);
  s.field("train", &C::train, unread);
  s.field("phases", &C::phases, unread);
  s.field("strategy", &C::strategy, unread);
  s.field("precision", &C::precision, unread);
  s.field("checkpoint", &C::checkpoint, unread);
  s.field("log", &C::log, unread);
}

// Whether a YAML is the block `model:` without that word above it.
bool is_bare_model(const std::string& file) {
  const config::Value tree = config::read_yaml(file);
  const auto* map = tree.as<config::Map>();
  require<ConfigError>(map != nullptr || tree.is_null(), file,
                       ": is no model; expected keys such as type, lm and vision");
  if (!map) return false;
  const auto whole = config::schema_of<UsedConfig>().keys();
  const auto model = config::schema_of<models::ModelConfig>().keys();
  const auto any_of = [&](const std::vector<std::string>& keys) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](const std::string& key) { return map->find(key) != nullptr; });
  };
  return any_of(model) && !any_of(whole);
}

// A change of a bare block may leave out `model.`.
std::string of_model(const std::string& change) {
  const std::size_t begin = change.starts_with("++") ? 2 : change.starts_with("~") ? 1 : 0;
  const std::string key = change.substr(begin, change.find_first_of(".=", begin) - begin);
  const auto keys = config::schema_of<models::ModelConfig>().keys();
  if (std::find(keys.begin(), keys.end(), key) == keys.end()) return change;
  return str(change.substr(0, begin), "model.", change.substr(begin));
}

void refuse_without_effect(const std::string& command, const Args& changes) {
  const auto known = config::schema_of<UsedConfig>().keys();
  for (const std::string& change : changes) {
    const std::string first = config::parse_override(change).path.front();
    // Unknown keys are the schema's business.
    const bool other =
        first != "model" && std::find(known.begin(), known.end(), first) != known.end();
    require<ConfigError>(!other, command, ": '", change,
                         "' has no effect here; only keys of model: have one");
  }
}

// PEFT's adapters, and the language model that they name.
nlohmann::ordered_json adapters_block(const std::string& folder) {
  const std::string file = folder + "/adapter_config.json";
  const nlohmann::json peft = parse_json(read_text(file, 1 << 24), file);
  const auto base = peft.find("base_model_name_or_path");
  const auto modules = peft.find("target_modules");
  require<ConfigError>(
      base != peft.end() && base->is_string() && modules != peft.end() && modules->is_array(), file,
      ": names no base_model_name_or_path or no list of target_modules");
  return {{"type", "causal_lm"},
          {"lm", *base},
          {"lora",
           {{"targets", *modules},
            {"rank", peft.value("r", 8)},
            {"alpha", peft.value("lora_alpha", 8.0)},
            {"dropout", peft.value("lora_dropout", 0.0)},
            {"rslora", peft.value("use_rslora", false)},
            {"weights", folder}}}};
}

config::Value exported_config(const std::string& folder) {
  const std::string path = fs::absolute(folder).lexically_normal().string();
  nlohmann::ordered_json block{{"type", "auto"}, {"lm", path}};
  if (path_exists(folder + "/adapter_config.json"))
    block = adapters_block(path);
  else if (models::is_exported_flamingo(folder))
    block = models::exported_model_block(path);
  return config::parse_yaml(nlohmann::ordered_json{{"model", block}}.dump(),
                            folder + "/config.json");
}

void add_patterns(const config::Value* list, std::vector<std::string>& patterns) {
  if (!list || !list->as<config::List>()) return;
  for (const config::Value& pattern : *list->as<config::List>())
    patterns.push_back(pattern.scalar_text());
}

std::vector<std::string> trained_patterns(const config::Value& tree) {
  std::vector<std::string> patterns;
  add_patterns(tree.at("train.trainable"), patterns);
  if (const config::Value* phases = tree.at("phases"); phases && phases->as<config::List>())
    for (const config::Value& phase : *phases->as<config::List>())
      add_patterns(phase.at("train"), patterns);
  return patterns;
}

// Files that a run was made from may lie elsewhere by now.
void require_files(const UsedModel& used) {
  const auto check = [&](const char* key, const std::string& path) {
    require<ConfigError>(path.empty() || path_exists(path), key, ": there is no file or folder '",
                         path, "', which ", used.origin, " names; say where it is with ", key,
                         "=PATH");
  };
  check("model.lm", used.config.lm);
  check("model.vision", used.config.vision);
  check("model.tokenizer", used.config.tokenizer);
  check("model.weights", used.config.weights);
  if (used.config.lora) check("model.lora.weights", used.config.lora->weights);
}

// Throws CheckpointError when the checkpoint names the frozen weights that it was trained on, and
// those of the model are not these.
void check_frozen_base(const std::string& checkpoint, const models::ModelConfig& config) {
  const std::string file = checkpoint::manifest_path(checkpoint);
  if (!path_exists(file)) return;
  const checkpoint::Manifest manifest = checkpoint::read_manifest(file);
  if (manifest.content == checkpoint::Content::full) return;  // nothing is taken from the files
  const std::vector<std::string> paths = models::base_files(config);
  const auto& bases = manifest.bases;
  for (std::size_t i = 0; i < std::min(bases.size(), paths.size()); ++i) {
    const std::string& path = paths[i];
    const char* key = path == config.vision ? "model.vision" : "model.lm";
    require<CheckpointError>(checkpoint::weights_digest(*open_tensors(path)) == bases[i].digest,
                             "'", checkpoint, "' was trained on the frozen weights of '",
                             bases[i].path, "', but '", path,
                             "' holds others now; name the right ones with ", key, "=PATH");
  }
}

}  // namespace

PathKind kind_of(const std::string& path) {
  if (!path_exists(path)) return PathKind::nothing;
  std::error_code ignored;
  if (!checkpoint::run_at(path).empty()) return PathKind::run;
  if (fs::is_directory(path, ignored)) return kind_of_folder(path);
  if (fs::is_regular_file(path, ignored)) return kind_of_file(path);
  return PathKind::shards;  // a pipe
}

bool has_vocabulary(const std::string& folder) {
  return std::any_of(kVocabularies.begin(), kVocabularies.end(),
                     [&](std::string_view name) { return path_exists(fs::path(folder) / name); });
}

std::string as_shards(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  std::vector<std::string> tars;
  for (const auto& entry : fs::directory_iterator(path))
    if (is_tar(entry.path().filename().string())) tars.push_back(entry.path().string());
  std::sort(tars.begin(), tars.end());
  return join(tars, "::");
}

std::vector<KeySection> keys_of_a_run() { return {{"", config::fields_of<train::RunConfig>()}}; }

Words split_words(const Args& words) {
  Words split;
  for (const std::string& word : words)
    (looks_like_change(word) && !path_exists(word) ? split.changes : split.paths).push_back(word);
  return split;
}

void require_path(const std::string& command, const std::string& path) {
  require<ConfigError>(path_exists(path), command, ": there is no file or folder '", path,
                       "'; name a run folder, a checkpoint, an exported folder or a YAML");
}

Located locate(const std::string& command, const std::string& path, Wanted wanted) {
  require_path(command, path);
  Located located{kind_of(path), path, ""};
  switch (located.kind) {
    case PathKind::tokenizer:
    case PathKind::shards:
      throw ConfigError(
          str(command, ": '", path, "' is ",
              located.kind == PathKind::shards ? "a tar shard or a folder of them" : "a tokenizer",
              "; name a run folder, a checkpoint, an exported folder or a YAML"));
    case PathKind::run: {
      located.path = checkpoint::run_at(path);
      const auto newest = checkpoint::newest_whole(located.path, wanted == Wanted::weights
                                                                     ? checkpoint::Reading::bytes
                                                                     : checkpoint::Reading::sizes);
      require<ConfigError>(wanted == Wanted::config || !newest.path.empty(), command, ": the run '",
                           located.path, "' has no checkpoint that could be used",
                           newest.passed_over.empty() ? "; it has saved none yet" : ": ",
                           join(newest.passed_over, "; "));
      if (wanted == Wanted::weights)
        for (const std::string& sentence : newest.passed_over) log::warn(sentence);
      located.checkpoint = newest.path;
      break;
    }
    case PathKind::checkpoint:
      if (path_exists(checkpoint::manifest_path(path)) && wanted == Wanted::weights) try {
          checkpoint::check_whole(path, checkpoint::Reading::bytes);
        } catch (const Error& error) {
          throw ConfigError(
              str(command, ": the checkpoint '", path, "' cannot be used: ", error.what()));
        }
      located.checkpoint = path;
      break;
    case PathKind::tensors: located.checkpoint = path; break;
    default: break;
  }
  return located;
}

void log_choice(const Located& located) {
  if (located.kind == PathKind::run)
    log::info("using the newest checkpoint of '", located.path, "': '", located.checkpoint, "'");
}

bool is_known_model(const std::string& folder) {
  if (path_exists(folder + "/adapter_config.json")) return true;
  const auto config = models::lm_config(folder);
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() && models::find_family(type->get<std::string>());
}

std::optional<config::Value> config_of(const std::string& checkpoint) {
  const std::string manifest = checkpoint::manifest_path(checkpoint);
  if (path_exists(manifest)) {
    const nlohmann::json shared = checkpoint::read_manifest(manifest).shared;
    if (shared.is_object() && shared.contains("config"))
      return config::parse_yaml(shared.at("config").dump(), manifest);
  }
  const std::string run = checkpoint::run_of(checkpoint);
  if (run.empty() || !path_exists(run + "/config.yaml")) return std::nullopt;
  return config::read_yaml(run + "/config.yaml");
}

std::optional<config::Layers> layers_of(const Located& located, const Args& changes) {
  config::Layers layers;
  layers.floe_configs = own_configs();
  layers.overrides = changes;
  if (located.kind == PathKind::yaml) {
    layers.files = {located.path};
    if (is_bare_model(located.path)) {
      layers.block = "model";
      for (std::string& change : layers.overrides) change = of_model(change);
    }
    return layers;
  }
  if (located.kind == PathKind::model) {
    layers.base = exported_config(located.path);
    return layers;
  }
  if (located.kind == PathKind::run && located.checkpoint.empty()) {
    layers.files = {located.path + "/config.yaml"};
    return layers;
  }
  auto found = config_of(located.checkpoint);
  if (!found) return std::nullopt;
  layers.base = std::move(*found);
  return layers;
}

std::optional<UsedModel> find_model(const std::string& command, const Located& located,
                                    const Args& changes, const std::string& model_yaml) {
  const Located teller = model_yaml.empty() ? located : Located{PathKind::yaml, model_yaml, ""};
  const auto layers = layers_of(teller, changes);
  if (!layers) return std::nullopt;
  refuse_without_effect(command, layers->overrides);
  const config::Composed composed = config::compose(*layers);
  UsedModel used;
  used.config = config::load<UsedConfig>(composed.tree, composed.removed).config.model;
  train::resolve_model_paths(used.config, *layers);
  used.config.skip_init = false;
  used.origin = layers->files.empty() ? *layers->base.origin.source : layers->files.front();
  used.checkpoint = located.checkpoint;
  if (!model_yaml.empty() && located.kind == PathKind::model) used.checkpoint = located.path;
  if (const config::Value* seed = composed.tree.at("run.seed"); seed && seed->as<std::int64_t>())
    used.seed = static_cast<std::uint64_t>(*seed->as<std::int64_t>());
  used.trained = trained_patterns(composed.tree);
  if (const std::string file = checkpoint::manifest_path(used.checkpoint);
      !used.checkpoint.empty() && path_exists(file))
    used.kept = checkpoint::read_manifest(file).kept.value_or(std::set<std::string>());
  // What the checkpoint holds came from there once; it is asked only for what the checkpoint lacks.
  if (!used.checkpoint.empty() && !path_exists(used.config.weights)) used.config.weights.clear();
  require_files(used);
  used.config.weights = checkpoint::weights_at(used.config.weights, "model.weights");
  return used;
}

UsedModel require_model(const std::string& command, const Located& located, const Args& changes) {
  auto used = find_model(command, located, changes);
  require<ConfigError>(used.has_value(), command, ": '", located.path,
                       "' does not say of which model it is; write a YAML with the model and name "
                       "that, with model.weights=",
                       located.path);
  return *used;
}

models::BuiltModel build(const UsedModel& used, std::shared_ptr<const TensorSource> trained) {
  if (used.checkpoint.empty()) return models::build_model(used.config, used.seed, trained);
  check_frozen_base(used.checkpoint, used.config);
  if (!trained) trained = models::unwrapped(open_tensors(used.checkpoint), used.checkpoint);
  return models::build_model(used.config, used.seed, trained, used.checkpoint);
}

}  // namespace floe::cli
