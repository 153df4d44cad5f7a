#include "floe/observe/diagnostics/arithmetic.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

#include "floe/models/weights/file_layouts.h"

#ifdef FLOE_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace floe::diagnostics {
namespace {

bool contains(const std::string& name, std::string_view part) {
  return name.find(part) != std::string::npos;
}

bool is_of(const std::string& name, const std::string& module) {
  return !module.empty() && name.starts_with(module + ".");
}

bool is_of_any(const std::string& name, const std::vector<std::string>& modules) {
  return std::any_of(modules.begin(), modules.end(),
                     [&](const std::string& module) { return is_of(name, module); });
}

const shard::PlannedParameter* find(const shard::ShardPlan& plan, std::string_view name) {
  for (const auto& parameter : plan.parameters)
    if (parameter.name == name) return &parameter;
  return nullptr;
}

constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::max();

// How far down the text's way through the model: 0 the tables, i + 1 layer i with its gate, and
// behind them what comes after the last layer.
std::int64_t depth_of(const std::string& name, const models::ModelInfo& info) {
  const models::ModelParts& parts = info.parts;
  const std::string hf = models::hf_name(name);
  if (is_of(hf, parts.layers))
    return std::strtoll(hf.c_str() + parts.layers.size() + 1, nullptr, 10) + 1;
  const bool first =
      is_of(hf, parts.embed) || is_of_any(hf, parts.tables) || is_of_any(hf, parts.before);
  return first ? 0 : info.layers + 1;
}

// Where backward ends.
struct Lowest {
  Lowest(const shard::ShardPlan& plan, std::size_t set, const models::ModelInfo& info) {
    std::int64_t first_gate = kNowhere;
    for (const auto& parameter : plan.parameters) {
      const std::string& name = parameter.name;
      if (contains(name, "gated_cross_attn"))
        first_gate = std::min(first_gate, depth_of(name, info));
      if (!parameter.trains_in(set) || models::is_vision(name)) continue;
      if (name.starts_with("perceiver."))
        resampler = true;
      else
        depth = std::min(depth, depth_of(name, info));
    }
    if (resampler) depth = std::min(depth, first_gate);
  }

  bool resampler = false;         // it trains, so that gates hand gradients back to it
  std::int64_t depth = kNowhere;  // the first that has a backward
};

struct Known {
  std::string_view name;  // part of the device's
  double half, tf32;      // dense, without sparsity
};
constexpr std::array<Known, 7> kKnown{{{"H200", 989, 494},
                                       {"H100 PCIe", 756, 378},
                                       {"H100", 989, 494},
                                       {"A100", 312, 156},
                                       {"L40S", 362, 183},
                                       {"A10G", 70, 35},
                                       {"V100", 125, 15.7}}};

}  // namespace

Arithmetic::Arithmetic(const shard::ShardPlan& plan, const models::LanguageModel& model)
    : plan_(plan) {
  for (std::size_t set = 0; set < std::max<std::size_t>(1, plan.sets.size()); ++set)
    of_set_.push_back(costs_of(set, model));
}

Arithmetic::Costs Arithmetic::costs_of(std::size_t set, const models::LanguageModel& model) const {
  const models::ModelInfo& info = model.info();
  const Lowest lowest(plan_, set, info);
  const auto* positions = find(plan_, "vision_encoder.positional_embedding");
  const auto* latents = find(plan_, "perceiver.latents");
  const double patches = positions ? static_cast<double>(positions->shape[0]) : 0;
  const double num_latents = latents ? static_cast<double>(latents->shape[0]) : 0;
  Costs costs;
  for (const auto& parameter : plan_.parameters) {
    if (parameter.shape.size() < 2) continue;  // norms and biases
    const std::string& name = parameter.name;
    const double forward = 2.0 * static_cast<double>(parameter.numel);
    if (models::is_vision(name)) {
      if (!contains(name, "embedding")) costs.per_image += forward * patches;
      continue;
    }
    const double trains = parameter.trains_in(set) ? 1 : 0;
    const bool keys_and_values = contains(name, "to_kv");
    if (name.starts_with("perceiver.")) {
      if (name == "perceiver.latents") continue;
      const double all = forward * (1 + trains + (lowest.resampler ? 1 : 0));
      costs.per_image += all * (keys_and_values ? patches + num_latents : num_latents);
      continue;
    }
    if (contains(name, "gated_cross_attn") && keys_and_values) {
      costs.per_image += forward * (1 + trains + (lowest.resampler ? 1 : 0)) * num_latents;
      continue;
    }
    const double all = forward * (1 + trains + (depth_of(name, info) >= lowest.depth ? 1 : 0));
    if (is_of(models::hf_name(name), info.parts.head)) {
      costs.per_label += all;
    } else if (is_of(models::hf_name(name), info.parts.embed)) {
      // A table is looked up; a tied one is the head as well.
      if (info.tied && !models::is_rows(name))
        costs.per_label += forward * (1 + trains + (lowest.depth < kNowhere ? 1 : 0));
    } else if (!is_of_any(models::hf_name(name), info.parts.tables)) {
      costs.per_token += all;
    }
  }
  const double seen = info.causal ? 0.5 : 1;  // of the pairs
  for (std::int64_t layer = 0; layer < info.layers; ++layer)
    costs.per_pair +=
        4.0 * seen * static_cast<double>(info.dim) * (layer + 1 >= lowest.depth ? 3 : 1);
  return costs;
}

double Arithmetic::of(const PackedBatch& batch, const models::ModelInput& input) const {
  const Costs& costs = of_set_[plan_.active_set];
  const auto* offsets = batch.sequence_offsets.const_data_ptr<std::int64_t>();
  double pairs = 0, labels = 0;  // of the batch itself: what it was rounded up to is no work
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const auto length = static_cast<double>(offsets[s + 1] - offsets[s]);
    pairs += length * length;
  }
  for (const std::int64_t of_source : input.labels_of_source)
    labels += static_cast<double>(of_source);
  return costs.per_token * static_cast<double>(batch.num_tokens()) +
         costs.per_image * static_cast<double>(batch.num_images()) + costs.per_label * labels +
         costs.per_pair * pairs;
}

std::string device_name([[maybe_unused]] c10::Device device) {
#ifdef FLOE_CUDA
  if (device.is_cuda()) return at::cuda::getDeviceProperties(device.index())->name;
#endif
  return "";
}

std::optional<double> peak_tflops(c10::Device device, bool half) {
  const std::string name = device_name(device);
  for (const Known& known : kKnown)
    if (name.find(known.name) != std::string::npos) return half ? known.half : known.tf32;
  return std::nullopt;
}

}  // namespace floe::diagnostics
