#include "floe/train/step/step_sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "floe/core/error.h"
#include "floe/data/sources/source.h"

namespace floe::train {
namespace {

// The numbers of known count, in the order in which they travel; `local_square` and the losses of
// the sources follow.
template <class Numbers, class Visit>
void for_each_number(Numbers& numbers, const Visit& visit) {
  for (auto& source : numbers.sources) {
    visit(source.ranks_with_loss);
    visit(source.samples);
  }
  visit(numbers.tokens);
  visit(numbers.bad_samples);
  visit(numbers.ranks_that_stop);
  visit(numbers.ranks_that_save);
}

}  // namespace

std::vector<double> StepNumbers::encode() const {
  std::vector<double> values = rank_times;
  for_each_number(*this, [&](double number) { values.push_back(number); });
  if (local_square) values.push_back(*local_square);
  return values;
}

StepNumbers StepNumbers::decode(std::span<const double> sums, std::size_t num_times) {
  StepNumbers numbers;
  require(sums.size() >= num_times, "the numbers of a step are cut off");
  numbers.rank_times.assign(sums.begin(), sums.begin() + static_cast<std::ptrdiff_t>(num_times));
  sums = sums.subspan(num_times);
  numbers.sources.resize(data::num_sources());
  const auto take = [&] {
    require(!sums.empty(), "the numbers of a step are cut off");
    const double first = sums.front();
    sums = sums.subspan(1);
    return first;
  };
  for_each_number(numbers, [&](double& number) { number = take(); });
  if (sums.size() > numbers.sources.size()) numbers.local_square = take();
  for (OfSource& source : numbers.sources) source.loss = take();
  return numbers;
}

void StepSums::add(const PackedBatch& batch, const models::ModelInput& input,
                   const at::Tensor& loss_of_source) {
  labels_.resize(data::num_sources());
  samples_.resize(data::num_sources());
  of_passes_.push_back(loss_of_source);
  for (std::size_t s = 0; s < labels_.size(); ++s)
    labels_[s] += static_cast<double>(input.labels_of_source[s]);
  const auto* source = batch.source.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < batch.num_sequences(); ++i)
    ++samples_[static_cast<std::size_t>(source[i])];
  tokens_ += static_cast<double>(batch.num_tokens());
}

StepNumbers StepSums::numbers() const {
  StepNumbers numbers;
  for (std::size_t s = 0; s < labels_.size(); ++s)
    numbers.sources.push_back(
        {.ranks_with_loss = labels_[s] > 0 ? 1.0 : 0.0, .samples = samples_[s]});
  numbers.tokens = tokens_;
  return numbers;
}

at::Tensor StepSums::losses() const {
  const at::AutoGradMode grad_off(false);
  std::vector<double> divisors;
  for (const double labels : labels_) divisors.push_back(std::max(labels, 1.0));
  const at::Tensor sums = at::stack(of_passes_).sum(0, false, at::kDouble);
  return sums / to_device(at::tensor(divisors, at::kDouble), sums.device());
}

StepTotals::StepTotals(const StepNumbers& sums)
    : tokens(static_cast<std::int64_t>(sums.tokens)),
      bad_samples(static_cast<std::int64_t>(sums.bad_samples)),
      stop(sums.ranks_that_stop > 0),
      save(sums.ranks_that_save > 0),
      local_square(sums.local_square.value_or(0)) {
  for (std::size_t s = 0; s < sums.sources.size(); ++s) {
    const StepNumbers::OfSource& of = sums.sources[s];
    if (of.samples == 0) continue;
    sources.push_back({data::source_name(static_cast<std::int64_t>(s)),
                       of.ranks_with_loss > 0 ? of.loss / of.ranks_with_loss : 0,
                       static_cast<std::int64_t>(of.samples)});
  }
}

}  // namespace floe::train
