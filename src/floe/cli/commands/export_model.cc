#include "floe/cli/commands/export_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "floe/checkpoint/folder/manifest.h"
#include "floe/cli/loaded_model.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/models/build.h"
#include "floe/models/flamingo/exported_flamingo.h"
#include "floe/models/lora/lora.h"
#include "floe/models/registry.h"
#include "floe/models/weights/assembled_source.h"
#include "floe/models/weights/file_layouts.h"
#include "floe/models/weights/save.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;
using models::ModelConfig;
using models::SavedTensor;

constexpr std::string_view kAverages = "ema.";  // the part of a checkpoint of floe

// A source without these prefixes, each taken off names that have it.
std::shared_ptr<const TensorSource> stripped(std::shared_ptr<const TensorSource> source,
                                             const ExportRequest& request) {
  Renames renames;
  for (const std::string& original : source->names()) {
    std::string name = original;
    for (const std::string& prefix : request.strip_prefixes)
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
    const auto [known, is_new] = renames.emplace(name, original);
    require<ConfigError>(is_new && !name.empty(), "--strip-prefix leaves ", quoted(known->second),
                         " and ", quoted(original), " with the name ", quoted(name));
  }
  return std::make_shared<RenamedSource>(std::move(source), renames);
}

ExportResult write(const std::shared_ptr<const TensorSource>& source, const std::string& place,
                   const ExportRequest& request) {
  ExportResult result;
  std::vector<models::SavedTensor> tensors;
  for (const std::string& name : source->names()) {
    const TensorInfo& info = source->get(name);
    models::SavedTensor tensor{.name = name, .shape = info.shape};
    tensor.runs.push_back({name, 0, info.numel()});
    tensors.push_back(std::move(tensor));
  }
  require<CheckpointError>(!tensors.empty(), "'", request.checkpoint, "' has no tensors to export");
  const models::SaveOptions options{
      .dtype = request.dtype, .source = source.get(), .max_shard_bytes = request.max_shard_bytes};
  for (const models::SavedTensor& tensor : tensors)
    result.bytes += tensor.numel() * size_of(models::saved_dtype(tensor, options));
  result.num_tensors = static_cast<std::int64_t>(tensors.size());
  if (request.to_file())
    models::write_file(tensors, place, {}, options);
  else
    models::write_shards(tensors, place, {}, options);
  return result;
}

// What trained once and was frozen when the checkpoint was saved has no average in it.
void warn_of_missing_averages(const std::string& checkpoint) {
  const std::string file = checkpoint::manifest_path(checkpoint);
  if (!path_exists(file)) return;
  const std::set<std::string> frozen = checkpoint::read_manifest(file).frozen;
  if (!frozen.empty())
    log::warn("'", checkpoint, "' has no average of ", frozen.size(),
              frozen.size() == 1 ? " parameter that" : " parameters that",
              " trained once, such as ", *frozen.begin(),
              ": frozen when it was saved, so that the weights are written as they are");
}

void warn_of_unreadable(const TensorSource& source, const std::string& path,
                        const std::string& prefix = "") {
  const std::string words = unreadable_in_words(source, prefix);
  if (!words.empty()) log::warn("'", path, "' is not exported as a whole: ", words);
}

class ModelExport {
 public:
  ModelExport(const ExportRequest& request, const UsedModel& model, const std::string& place)
      : request_(request), config_(model.config), place_(place) {
    built_ = build(model, request.checkpoint.empty() ? nullptr : exported_weights(request));
    if (!model.trained.empty()) nn::set_trainable(*built_.module, model.trained);
    kept_ = model.kept;
    source_ = with_new_ones(built_, model.seed);
    options_ = {.dtype = request.dtype,
                .source = source_.get(),
                .max_shard_bytes = request.max_shard_bytes};
  }

  ExportResult run() {
    if (!request_.merge_lora) return adapters_alone();
    const bool flamingo = config_.type == ModelConfig::Type::flamingo;
    if (request_.trainable_only) return trained_part(flamingo);
    return flamingo ? whole_flamingo() : language_model();
  }

 private:
  ExportResult done(const char* what, const std::vector<SavedTensor>& tensors) const {
    ExportResult result{.what = what};
    for (const SavedTensor& tensor : tensors) {
      const auto names = static_cast<std::int64_t>(1 + tensor.copies.size());
      result.num_tensors += names;
      result.bytes += names * tensor.numel() * size_of(models::saved_dtype(tensor, options_));
    }
    return result;
  }

  void add_tokenizer() const {
    models::copy_companions(config_.lm, place_);
    std::error_code ignored;
    if (fs::is_directory(config_.tokenizer, ignored))
      models::copy_companions(config_.tokenizer, place_);
  }

  ExportResult language_model() {
    const std::vector<SavedTensor> tensors = models::language_model_layout(*built_.model);
    if (request_.to_file()) {
      models::write_file(tensors, place_, {}, options_);
    } else {
      models::save_language_model(*built_.model, config_.lm, place_, {}, options_);
      add_tokenizer();
    }
    return done("the language model under Hugging Face's names", tensors);
  }

  ExportResult whole_flamingo() {
    const std::vector<SavedTensor> tensors = models::flamingo_layout(*built_.model);
    if (request_.to_file()) {
      models::write_file(tensors, place_, {}, options_);
    } else {
      models::write_shards(tensors, place_, {}, options_);
      models::save_flamingo_config(*built_.model, config_, /*with_adapters=*/false, place_,
                                   options_);
      add_tokenizer();
    }
    return done("the whole Flamingo under OpenFlamingo's names", tensors);
  }

  // On the hub OpenFlamingo's models are one file of this name.
  ExportResult trained_part(bool flamingo) {
    // What trained in an earlier part of the run, or began from random numbers, belongs to it as
    // well.
    const auto trains = [this](const nn::NamedParameter& parameter) {
      return parameter.tensor.requires_grad() || kept_.contains(parameter.name);
    };
    const std::vector<SavedTensor> tensors = models::trained_part_layout(*built_.model, trains);
    models::write_file(tensors, request_.to_file() ? place_ : place_ + "/checkpoint.pt", {},
                       options_);
    if (!request_.to_file() && flamingo) {
      models::save_flamingo_config(*built_.model, config_, /*with_adapters=*/true, place_,
                                   options_);
      add_tokenizer();
    }
    return done("the trained part under OpenFlamingo's names", tensors);
  }

  ExportResult adapters_alone() {
    require<ConfigError>(config_.lora.has_value(),
                         "--no-merge-lora: the model of this checkpoint has no adapters");
    require<ConfigError>(!request_.to_file(), "--no-merge-lora writes a folder of PEFT; '",
                         request_.out, "' is a file");
    models::save_peft(*built_.model, *config_.lora, config_.lm, place_, {}, options_);
    ExportResult result{.what = "the adapters in PEFT's layout"};
    for (const models::AdaptedLinear& adapted : models::adapted_linears(*built_.module)) {
      result.num_tensors += 2;
      result.bytes += adapted.options.rank * (adapted.in + adapted.out) *
                      size_of(request_.dtype.value_or(DType::f32));
    }
    return result;
  }

  const ExportRequest& request_;
  const ModelConfig& config_;
  const std::string& place_;
  models::BuiltModel built_;
  std::set<std::string> kept_;
  std::shared_ptr<const TensorSource> source_;
  models::SaveOptions options_;
};

}  // namespace

bool ExportRequest::to_file() const {
  return out.ends_with(".safetensors") || out.ends_with(".pt") || out.ends_with(".pth");
}

std::shared_ptr<const TensorSource> exported_weights(const ExportRequest& request) {
  const std::shared_ptr<const TensorSource> source = open_tensors(request.checkpoint);
  warn_of_unreadable(*source, request.checkpoint, weights_prefix(*source));
  auto weights = models::unwrapped(source, request.checkpoint);
  if (!request.ema) return weights;
  Renames averages = names_below(*source, kAverages);
  if (averages.empty()) averages = names_below(*source, "ema_state_dict.");  // of a file
  require<CheckpointError>(
      !averages.empty(), "'", request.checkpoint,
      "' has no averages of weights (ema): train with train.ema.decay, or leave "
      "out --ema");
  warn_of_missing_averages(request.checkpoint);
  return std::make_shared<MergedSource>(std::vector<std::shared_ptr<const TensorSource>>{
      std::make_shared<RenamedSource>(source, averages), weights});
}

ExportResult export_raw(const ExportRequest& request, const std::string& place) {
  const std::shared_ptr<const TensorSource> source = open_tensors(request.checkpoint);
  warn_of_unreadable(*source, request.checkpoint);
  ExportResult result = write(source, place, request);
  result.what = "every tensor under its flat name";
  return result;
}

ExportResult export_weights(const ExportRequest& request, const std::string& place) {
  ExportResult result = write(stripped(exported_weights(request), request), place, request);
  result.what = "the weights";
  if (request.base.empty()) return result;
  fs::copy_file(request.base + "/config.json", place + "/config.json");
  models::copy_companions(request.base, place);
  return result;
}

ExportResult export_model(const ExportRequest& request, const UsedModel& model,
                          const std::string& place) {
  return ModelExport(request, model, place).run();
}

}  // namespace floe::cli
