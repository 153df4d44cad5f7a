#include "floe/train/step/step_sums.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "floe/batch/packed_batch.h"
#include "floe/data/loader/loader_batch.h"

namespace floe::train {
namespace {

constexpr std::size_t kOfSource = 2;  // whether there is a loss, samples
constexpr std::size_t kValues = kNumSources * kOfSource + 4;

}  // namespace

void StepSums::add(const PackedBatch& batch, const models::ModelInput& input,
                   const at::Tensor& loss_of_source) {
  of_passes_.push_back(loss_of_source);
  for (std::size_t s = 0; s < kNumSources; ++s)
    labels_[s] += static_cast<double>(input.labels_of_source[s]);
  const auto* source = batch.source.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < batch.num_sequences(); ++i)
    ++samples_[static_cast<std::size_t>(source[i])];
  tokens_ += static_cast<double>(batch.num_tokens());
}

std::vector<double> StepSums::values(double bad_samples, bool stop, bool save) const {
  std::vector<double> values;
  values.reserve(kValues + 2);
  for (std::size_t s = 0; s < kNumSources; ++s)
    values.insert(values.end(), {labels_[s] > 0 ? 1.0 : 0.0, samples_[s]});
  values.insert(values.end(), {tokens_, bad_samples, stop ? 1.0 : 0.0, save ? 1.0 : 0.0});
  return values;
}

at::Tensor StepSums::losses() const {
  const at::AutoGradMode grad_off(false);
  std::vector<double> divisors;
  for (const double labels : labels_) divisors.push_back(std::max(labels, 1.0));
  const at::Tensor sums = at::stack(of_passes_).sum(0, false, at::kDouble);
  return sums / to_device(at::tensor(divisors, at::kDouble), sums.device());
}

StepTotals::StepTotals(std::span<const double> sums) {
  const auto losses = sums.last(kNumSources);
  for (std::size_t s = 0; s < kNumSources; ++s) {
    const auto of = sums.subspan(s * kOfSource, kOfSource);
    if (of[1] == 0) continue;
    sources.push_back({data::name_of(static_cast<data::SourceId>(s)),
                       of[0] > 0 ? losses[s] / of[0] : 0, static_cast<std::int64_t>(of[1])});
  }
  const auto others = sums.subspan(kNumSources * kOfSource);
  tokens = static_cast<std::int64_t>(others[0]);
  bad_samples = static_cast<std::int64_t>(others[1]);
  stop = others[2] > 0;
  save = others[3] > 0;
  rest = sums.subspan(kValues, sums.size() - kValues - kNumSources);
}

}  // namespace floe::train
