#include "floe/train/step_sums.h"

#include <ATen/ops/stack.h>

#include <cmath>

#include "floe/data/loader_batch.h"

namespace floe::train {
namespace {

constexpr std::size_t kOfSource = 3;  // loss, whether there is one, samples
constexpr std::size_t kValues = kNumSources * kOfSource + 3;

}  // namespace

void StepSums::add(const PackedBatch& batch, const models::ModelInput& input,
                   const at::Tensor& loss_of_source) {
  pending_.push_back(loss_of_source);
  for (std::size_t s = 0; s < kNumSources; ++s)
    labels_[s] += static_cast<double>(input.labels_of_source[s]);
  const auto* source = batch.source.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < batch.num_sequences(); ++i)
    ++samples_[static_cast<std::size_t>(source[i])];
  tokens_ += static_cast<double>(batch.num_tokens());
}

void StepSums::fetch() {
  if (pending_.empty()) return;
  const at::Tensor all = at::stack(pending_).sum(0, false, at::kDouble).cpu();
  pending_.clear();
  const auto* sums = all.const_data_ptr<double>();
  for (std::size_t s = 0; s < kNumSources; ++s) loss_[s] += sums[s];
}

bool StepSums::finite() {
  fetch();
  for (const double loss : loss_)
    if (!std::isfinite(loss)) return false;
  return true;
}

std::vector<double> StepSums::values(double bad_samples, bool stop) {
  fetch();
  std::vector<double> values;
  values.reserve(kValues + 2);
  for (std::size_t s = 0; s < kNumSources; ++s) {
    const bool any = labels_[s] > 0;
    values.insert(values.end(), {any ? loss_[s] / labels_[s] : 0, any ? 1.0 : 0.0, samples_[s]});
  }
  values.insert(values.end(), {tokens_, bad_samples, stop ? 1.0 : 0.0});
  return values;
}

StepTotals::StepTotals(std::span<const double> sums) {
  for (std::size_t s = 0; s < kNumSources; ++s) {
    const auto of = sums.subspan(s * kOfSource, kOfSource);
    if (of[2] == 0) continue;
    sources.push_back({data::name_of(static_cast<data::SourceId>(s)), of[1] > 0 ? of[0] / of[1] : 0,
                       static_cast<std::int64_t>(of[2])});
  }
  const auto others = sums.subspan(kNumSources * kOfSource);
  tokens = static_cast<std::int64_t>(others[0]);
  bad_samples = static_cast<std::int64_t>(others[1]);
  stop = others[2] > 0;
  rest = sums.subspan(kValues);
}

}  // namespace floe::train
