#include "floe/train/inputs.h"

#include <filesystem>
#include <functional>

#include "floe/checkpoint/folders.h"
#include "floe/checkpoint/newest.h"
#include "floe/config/input_paths.h"
#include "floe/data/prepared_batches.h"
#include "floe/data/shard_list.h"

namespace floe::train {
namespace {

struct Input {
  enum class Kind { path, shards, batches };

  std::string key;  // "model.lm"
  std::string* text;
  Kind kind = Kind::path;
};

std::vector<Input> model_inputs(models::ModelConfig& model, const std::string& block) {
  std::vector<Input> inputs{{block + "lm", &model.lm},
                            {block + "vision", &model.vision},
                            {block + "weights", &model.weights},
                            {block + "tokenizer", &model.tokenizer}};
  if (model.lora) inputs.push_back({block + "lora.weights", &model.lora->weights});
  return inputs;
}

std::vector<Input> inputs_of(RunConfig& config) {
  using enum Input::Kind;
  std::vector<Input> inputs = model_inputs(config.model, "model.");
  DataConfig& data = config.data;
  if (data.laion) inputs.push_back({"data.laion.shards", &data.laion->shards, shards});
  if (data.mmc4) inputs.push_back({"data.mmc4.shards", &data.mmc4->shards, shards});
  if (data.text) inputs.push_back({"data.text.files", &data.text->files, shards});
  if (data.batches) inputs.push_back({"data.batches", &*data.batches, batches});
  ValidationConfig& validation = config.train.validation;
  for (auto& [source, text] : validation.shards.by_source) {
    const std::string key = "train.validation.shards";
    inputs.push_back({source.empty() ? key : key + "." + source, &text, shards});
  }
  if (validation.batches)
    inputs.push_back({"train.validation.batches", &*validation.batches, batches});
  if (config.run.resume != "auto" && config.run.resume != "never")
    inputs.push_back({"run.resume", &config.run.resume});
  std::erase_if(inputs, [](const Input& input) { return input.text->empty(); });
  return inputs;
}

std::string file_of(const std::string& key, const config::Value& values) {
  const config::Value* value = values.at(key);
  return value ? config::file_of(value->origin) : "";
}

void resolve(const Input& input, const std::string& file) {
  switch (input.kind) {
    case Input::Kind::path: *input.text = config::find_input(*input.text, file); break;
    case Input::Kind::shards: try { *input.text = data::resolve_shards(*input.text, file);
      } catch (const ConfigError& error) {
        throw ConfigError(str(input.key, ": ", error.what()));
      }
      break;
    case Input::Kind::batches:
      *input.text = config::find_input(*input.text, file, data::has_prepared_batches);
      break;
  }
}

}  // namespace

void resolve_inputs(RunConfig& config, const config::Value& values) {
  for (const Input& input : inputs_of(config)) resolve(input, file_of(input.key, values));
  // RUN/config.yaml means the run that it lies in, wherever that has moved.
  const std::string file = file_of("run.dir", values);
  if (std::filesystem::path(file).filename() == "config.yaml" &&
      file_of("run.name", values) == file && !checkpoint::run_at(file).empty()) {
    const std::filesystem::path place = std::filesystem::absolute(file).lexically_normal();
    config.run.dir = place.parent_path().parent_path().string();
    config.run.name = place.parent_path().filename().string();
  }
  config.run.dir = std::filesystem::absolute(config.run.dir).lexically_normal().string();
}

void require_inputs(const config::Loaded<RunConfig>& loaded, int num_ranks) {
  RunConfig config = loaded.config;
  for (const Input& input : inputs_of(config)) {
    // Where a run began is not asked for again once it has checkpoints of its own.
    if (input.key == "run.resume" &&
        !checkpoint::list_checkpoints(checkpoint::checkpoints_folder(config.run.folder())).empty())
      continue;
    std::optional<std::string> missing;
    if (input.kind == Input::Kind::shards)
      missing = data::unfound_part(*input.text);
    else if (!input.text->starts_with('/'))
      missing = *input.text;
    if (missing && missing->starts_with('@')) missing->erase(0, 1);
    if (missing)
      throw ConfigError(str(input.key, ": there is no '", *missing, "', ",
                            config::not_found(*missing, file_of(input.key, loaded.values)),
                            "; mend the path"));
    if (input.kind == Input::Kind::batches)
      data::require_file_per_rank(*input.text, input.key, num_ranks);
  }
}

void resolve_model_paths(models::ModelConfig& model, const config::Layers& layers) {
  const config::Value tree = config::compose(layers).tree;
  const std::string block = tree.at("model") ? "model." : "";  // else the whole file is the block
  for (const Input& input : model_inputs(model, block)) {
    const std::string file = file_of(input.key, tree);
    resolve(input, file);
    require<ConfigError>(input.text->empty() || input.text->starts_with('/'), input.key,
                         ": there is no '", *input.text, "', ",
                         config::not_found(*input.text, file), "; mend the path");
  }
}

}  // namespace floe::train
