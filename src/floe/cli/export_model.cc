#include "floe/cli/export_model.h"

#include <filesystem>

#include "floe/cli/model_tensors.h"
#include "floe/core/error.h"
#include "floe/models/build.h"
#include "floe/models/file_layouts.h"
#include "floe/models/lora.h"
#include "floe/models/save.h"
#include "floe/models/tensor_writers.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;
using models::ModelConfig;
using models::SavedTensor;

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

  void write_file(const std::vector<SavedTensor>& tensors, const std::string& path) const {
    if (path.ends_with(".safetensors"))
      models::write_safetensors(tensors, path, {}, options_);
    else
      models::write_torch_file(tensors, path, {}, options_);
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
      write_file(tensors, place_);
    } else {
      models::save_language_model(*built_.model, config_.lm, place_, {}, options_);
      add_tokenizer();
    }
    return done("the language model under Hugging Face's names", tensors);
  }

  ExportResult whole_flamingo() {
    const std::vector<SavedTensor> tensors = models::flamingo_layout(*built_.model);
    if (request_.to_file()) {
      write_file(tensors, place_);
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
    // What trained in an earlier part of the run, or began from random numbers, belongs to it as well.
    const auto trains = [this](const nn::NamedParameter& parameter) {
      return parameter.tensor.requires_grad() || kept_.contains(parameter.name);
    };
    const std::vector<SavedTensor> tensors = models::trained_part_layout(*built_.model, trains);
    write_file(tensors, request_.to_file() ? place_ : place_ + "/checkpoint.pt");
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

ExportResult export_model(const ExportRequest& request, const UsedModel& model,
                          const std::string& place) {
  return ModelExport(request, model, place).run();
}

}  // namespace floe::cli
