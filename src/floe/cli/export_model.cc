#include "floe/cli/export_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/io/atomic_file.h"
#include "floe/io/file.h"
#include "floe/io/json_text.h"
#include "floe/io/renamed_source.h"
#include "floe/models/assembled_source.h"
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

constexpr std::int64_t kMostConfigBytes = 1 << 24;

// Parameters that are in no file begin as the run began them.
std::shared_ptr<const TensorSource> with_new_ones(const models::BuiltModel& built,
                                                  std::uint64_t seed) {
  auto made = std::make_shared<models::AssembledSource>(seed);
  for (const nn::NamedParameter& parameter : nn::named_parameters(*built.module)) {
    if (built.source->find(parameter.name)) continue;
    made->add(parameter.name, parameter.tensor.sizes().vec(), DType::f32,
              {{.init = *parameter.init,
                .seed_name = parameter.name,
                .count = parameter.tensor.numel()}});
  }
  return std::make_shared<MergedSource>(
      std::vector<std::shared_ptr<const TensorSource>>{built.source, made});
}

nlohmann::ordered_json json_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return nullptr;
  const std::string text = read_text(path, kMostConfigBytes);
  parse_json(text, path);  // with its checks and messages
  return nlohmann::ordered_json::parse(text);
}

// What a reader needs to build the model again; the parts' own configurations lie inside.
void write_flamingo_config(const ModelConfig& config, const std::string& folder) {
  nlohmann::ordered_json vision = json_file(config.vision + "/open_clip_config.json");
  if (vision.is_null()) vision = json_file(config.vision + "/config.json");
  const nlohmann::ordered_json all{
      {"model_type", "open_flamingo"},
      {"cross_attn_every_n_layers", config.cross_attn_every_n_layers},
      {"perceiver",
       {{"depth", config.perceiver.depth},
        {"dim_head", config.perceiver.dim_head},
        {"heads", config.perceiver.heads},
        {"num_latents", config.perceiver.num_latents},
        {"ff_mult", config.perceiver.ff_mult}}},
      {"cross_attn",
       {{"dim_head", config.cross_attn.dim_head},
        {"heads", config.cross_attn.heads},
        {"ff_mult", config.cross_attn.ff_mult}}},
      {"vision_tokens_after_ln_post", config.vision_tokens_after_ln_post},
      {"only_attend_immediate_media", config.only_attend_immediate_media},
      {"lang_encoder", json_file(config.lm + "/config.json")},
      {"vision_encoder", vision},
  };
  write_file_atomically(folder + "/config.json", all.dump(2) + "\n");
}

class ModelExport {
 public:
  ModelExport(const ExportRequest& request, const CheckpointModel& model, const std::string& place)
      : request_(request), config_(model.config), place_(place) {
    check_frozen_base(request.checkpoint, config_);
    ModelConfig config = config_;
    config.skip_init = false;
    built_ = models::build_model(config, model.seed, exported_weights(request), request.checkpoint);
    if (!model.trained.empty()) nn::set_trainable(*built_.module, model.trained);
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
      write_flamingo_config(config_, place_);
      add_tokenizer();
    }
    return done("the whole Flamingo under OpenFlamingo's names", tensors);
  }

  // On the hub OpenFlamingo's models are one file of this name.
  ExportResult trained_part(bool flamingo) {
    const std::vector<SavedTensor> tensors = models::trained_part_layout(*built_.model);
    write_file(tensors, request_.to_file() ? place_ : place_ + "/checkpoint.pt");
    if (!request_.to_file() && flamingo) {
      write_flamingo_config(config_, place_);
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
  std::shared_ptr<const TensorSource> source_;
  models::SaveOptions options_;
};

}  // namespace

ExportResult export_model(const ExportRequest& request, const CheckpointModel& model,
                          const std::string& place) {
  return ModelExport(request, model, place).run();
}

}  // namespace floe::cli
