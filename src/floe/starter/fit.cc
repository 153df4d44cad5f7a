#include "floe/starter/fit.h"

#include <algorithm>

#include "floe/models/flamingo/flamingo.h"
#include "floe/nn/layers.h"

namespace floe::starter {
namespace {

// Beyond what is counted: masks, positions, what the allocator cannot use again at once.
constexpr double kMargin = 1.2;
constexpr std::int64_t kMostLogits = std::int64_t{1} << 24;

// Rows that go through the linear layers of a model.
struct Rows {
  double text = 0;     // tokens
  double latents = 0;  // of the resampler
  double media = 0;    // tokens of the tower, and latents
};

Rows rows_of(const BatchLoad& load, const models::Flamingo* flamingo) {
  Rows rows{.text = load.tokens};
  if (!flamingo) return rows;
  const models::FlamingoSpec& spec = flamingo->spec();
  const auto patches = static_cast<double>(spec.vision.grid() * spec.vision.grid());
  rows.latents = load.images * static_cast<double>(spec.perceiver.num_latents);
  rows.media = load.images * patches + rows.latents;
  return rows;
}

// Elements that a unit keeps for its backward.
double kept_by(const shard::PlannedUnit& unit, const Rows& rows) {
  const bool resampler = unit.class_name == "PerceiverResampler";
  double elements = 0;
  for (const auto& item : unit.module->named_modules("", /*include_self=*/false)) {
    const auto* linear = dynamic_cast<const nn::Linear*>(item.value().get());
    if (!linear) continue;
    const bool of_media = item.key().ends_with("to_kv");
    const double through =
        resampler ? (of_media ? rows.media : rows.latents) : (of_media ? rows.latents : rows.text);
    elements += through * static_cast<double>(linear->weight.size(0) + linear->weight.size(1));
  }
  return elements;
}

double tower_bytes(const models::VisionSpec& spec, double images, double size) {
  const auto tokens = static_cast<double>(spec.grid() * spec.grid() + 1);
  const auto wide = static_cast<double>(8 * spec.width + 2 * spec.mlp_dim);
  const auto pixels = static_cast<double>(3 * spec.image_size * spec.image_size);
  return images * (tokens * wide * size + pixels * (4 + size));
}

}  // namespace

std::int64_t activation_bytes(const plan::PlanReport& report, const BatchLoad& load) {
  const plan::PlanSubject& subject = report.subject;
  const auto size = static_cast<double>(size_of(subject.strategy.mixed_precision.param));
  const auto* model = dynamic_cast<const models::LanguageModel*>(subject.model.get());
  const auto* flamingo = dynamic_cast<const models::Flamingo*>(subject.model.get());
  const Rows rows = rows_of(load, flamingo);
  const auto dim = static_cast<double>(model ? model->info().dim : 0);
  const auto vocab = static_cast<double>(model ? model->info().vocab : 0);

  double kept = 0, largest = 0;
  for (const shard::PlannedUnit& unit : report.plan.units) {
    if (unit.name.empty() || unit.name.starts_with("vision_encoder.")) continue;
    const double whole = kept_by(unit, rows);
    kept += unit.recomputes ? rows.text * dim : whole;
    if (unit.recomputes) largest = std::max(largest, whole);
  }
  double bytes = (kept + largest) * size;
  // Logits, their gradient and the softmax, in fp32; hidden states at both ends.
  bytes += 3 * 4 * std::min(static_cast<double>(kMostLogits), rows.text * vocab);
  bytes += 4 * rows.text * dim * 2;
  if (flamingo) bytes += tower_bytes(flamingo->spec().vision, load.images, size);
  return static_cast<std::int64_t>(kMargin * bytes);
}

std::int64_t device_bytes(const plan::PlanReport& report) {
  return report.holdings.held.peak() - report.holdings.host_peak;
}

std::int64_t saved_bytes(const plan::PlanReport& report) {
  const shard::HeldBytes& held = report.holdings.held;
  double mine = 0, all = 0;
  for (const shard::PlannedGroup& group : report.plan.groups) {
    if (!group.trainable) continue;
    all += static_cast<double>(group.slice_bytes());
    mine += static_cast<double>(group.slice_bytes()) / group.replicas;
  }
  const auto bytes = static_cast<double>(held.trainable_slices + held.optimizer_state);
  return all > 0 ? static_cast<std::int64_t>(bytes * mine / all) : 0;
}

}  // namespace floe::starter
