#include "floe/train/arithmetic.h"

#include "floe/models/part_names.h"

namespace floe::train {
namespace {

bool contains(const std::string& name, std::string_view part) {
  return name.find(part) != std::string::npos;
}

bool is_of(const std::string& name, const std::string& module) {
  return !module.empty() && name.starts_with(module + ".");
}

const shard::PlannedParameter* find(const shard::ShardPlan& plan, std::string_view name) {
  for (const auto& parameter : plan.parameters)
    if (parameter.name == name) return &parameter;
  return nullptr;
}

}  // namespace

Arithmetic::Arithmetic(const shard::ShardPlan& plan, const models::LanguageModel& model) {
  const models::DecoderSpec& spec = model.decoder().spec();
  const auto* positions = find(plan, "vision_encoder.positional_embedding");
  const auto* latents = find(plan, "perceiver.latents");
  const double patches = positions ? static_cast<double>(positions->shape[0]) : 0;
  const double num_latents = latents ? static_cast<double>(latents->shape[0]) : 0;
  for (const auto& parameter : plan.parameters) {
    if (parameter.shape.size() < 2) continue;  // norms and biases
    const std::string& name = parameter.name;
    const double forward = 2.0 * static_cast<double>(parameter.numel);
    if (models::is_vision(name)) {
      if (!contains(name, "embedding")) per_image_ += forward * patches;
      continue;
    }
    const double all = forward * (parameter.trainable ? 3 : 2);
    const bool keys_and_values = contains(name, "to_kv");
    if (name.starts_with("perceiver.")) {
      if (name == "perceiver.latents") continue;
      per_image_ += all * (keys_and_values ? patches + num_latents : num_latents);
    } else if (contains(name, "gated_cross_attn") && keys_and_values) {
      per_image_ += all * num_latents;
    } else if (is_of(models::hf_name(name), spec.names.head)) {
      per_label_ += all;
    } else if (is_of(models::hf_name(name), spec.names.embed)) {
      // A table is looked up; a tied one is the head as well.
      if (spec.tied && !models::is_rows(name)) per_label_ += all;
    } else if (!is_of(models::hf_name(name), spec.names.positions)) {
      per_token_ += all;
    }
  }
  per_pair_ = 3.0 * 4.0 * 0.5 * static_cast<double>(spec.dim * spec.layers);
}

double Arithmetic::of(const PackedBatch& batch, const models::ModelInput& input) const {
  const auto* offsets = batch.sequence_offsets.const_data_ptr<std::int64_t>();
  double pairs = 0;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const auto length = static_cast<double>(offsets[s + 1] - offsets[s]);
    pairs += length * length;
  }
  return per_token_ * static_cast<double>(batch.num_tokens()) +
         per_image_ * static_cast<double>(batch.num_images()) +
         per_label_ * static_cast<double>(input.predictors.numel()) + per_pair_ * pairs;
}

}  // namespace floe::train
