#include "tests/support/reference.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "floe/core/names.h"

namespace floe::test {

at::Tensor through_eight_bit(const at::Tensor& matrix, at::ScalarType dtype) {
  const at::Tensor values = matrix.to(at::kCPU, at::kFloat);
  const bool integers = dtype == at::kChar;
  const at::Tensor largest = values.abs().amax(1, /*keepdim=*/true);
  const at::Tensor scale = at::where(largest == 0, 1.0, largest / (integers ? 127 : 448));
  const at::Tensor code = integers ? (values / scale).round() : (values / scale).to(dtype);
  return (code.to(at::kFloat) * scale).to(matrix.device());
}

namespace {

// No other step, micro-batch or rank has this seed.
std::uint64_t seed_of(std::uint64_t per_step, std::uint64_t per_micro, int step, int micro,
                      int rank) {
  return per_step * (static_cast<std::uint64_t>(step) + 1) +
         per_micro * static_cast<std::uint64_t>(micro) + static_cast<std::uint64_t>(rank);
}

}  // namespace

at::Tensor batch_of(const Recipe& recipe, int step, int micro, int rank) {
  auto generator = at::detail::createCPUGenerator(seed_of(1000003, 1009, step, micro, rank));
  return at::randint(0, recipe.size.vocab, {recipe.batch, recipe.size.context}, generator,
                     at::kLong)
      .to(recipe.device);
}

void seed_forward(int step, int micro, int rank) {
  at::manual_seed(seed_of(77777, 131, step, micro, rank));
}

ReferenceTrainer::ReferenceTrainer(const Recipe& recipe, int world)
    : recipe_(recipe), world_(world) {
  model_ = std::make_shared<models::Transformer>(recipe.size);
  nn::materialize(*model_, recipe.seed, recipe.device);
  if (recipe_.sets.empty()) recipe_.sets = {recipe_.trainable};
  nn::set_trainable(*model_, recipe_.sets.front());
  for (auto& p : nn::named_parameters(*model_)) {
    masters_[p.name] = p.tensor.detach().clone();
    const bool matrix = p.tensor.dim() == 2 && p.owners.size() == 1 && p.name != "embed.weight" &&
                        p.name != "positions.weight";
    if (recipe_.frozen_dtype && matrix && !p.tensor.requires_grad())
      masters_[p.name] = through_eight_bit(masters_[p.name], *recipe_.frozen_dtype);
  }
}

bool ReferenceTrainer::trains(const std::string& name, std::size_t set) const {
  return glob_match_any(recipe_.sets[set], name);
}

void ReferenceTrainer::activate(std::size_t set, bool drop) {
  const at::NoGradGuard no_grad;
  for (auto& [name, master] : masters_) {
    if (!drop || !trains(name, set_)) continue;
    moments_.erase({set_, name});
    if (!trains(name, set))
      master = master.to(recipe_.param_dtype.value_or(at::kFloat)).to(at::kFloat);
  }
  set_ = set;
  for (auto& p : nn::named_parameters(*model_)) p.tensor.requires_grad_(trains(p.name, set));
}

ReferenceTrainer::Outcome ReferenceTrainer::step() {
  auto parameters = nn::named_parameters(*model_);
  {
    const at::NoGradGuard no_grad;
    for (auto& p : parameters) {
      const auto dtype = recipe_.param_dtype.value_or(at::kFloat);
      p.tensor.set_data(masters_[p.name].to(dtype, false, /*copy=*/true));
      p.tensor.mutable_grad().reset();
    }
  }
  Outcome outcome;
  std::map<std::string, std::map<int, at::Tensor>> sums;  // per micro-step
  for (int rank = 0; rank < world_; ++rank) {
    double loss_sum = 0;
    for (int micro = 0; micro < recipe_.micro_steps; ++micro) {
      const at::Tensor ids = batch_of(recipe_, step_, micro, rank);
      seed_forward(step_, micro, rank);
      at::Tensor loss = models::next_token_loss(model_->forward(ids), ids) / recipe_.micro_steps;
      loss.backward();
      loss_sum += loss.item<double>();
      const at::NoGradGuard no_grad;
      for (auto& p : parameters) {
        if (!p.tensor.grad().defined()) continue;
        const at::Tensor g = p.tensor.grad().to(at::kFloat);
        auto& sum = sums[p.name][micro];
        sum = sum.defined() ? sum + g : g;
        p.tensor.mutable_grad().reset();
      }
    }
    outcome.losses.push_back(loss_sum);
  }
  const at::NoGradGuard no_grad;
  double squares = 0;
  for (auto& [name, micros] : sums) {
    at::Tensor total;
    for (auto& [micro, sum] : micros) total = total.defined() ? total + sum / world_ : sum / world_;
    outcome.gradients[name] = total;
    squares += total.to(at::kDouble).square().sum().item<double>();
  }
  outcome.gradient_norm = std::sqrt(squares);
  const double factor =
      recipe_.clip ? std::min(1.0, *recipe_.clip / (outcome.gradient_norm + 1e-6)) : 1.0;
  step_ += 1;
  for (auto& [name, gradient] : outcome.gradients) {
    at::Tensor g = gradient * factor;
    Moments& moments = moments_[{set_, name}];
    if (!moments.average.defined())
      moments = {at::zeros_like(masters_[name]), at::zeros_like(masters_[name])};
    at::Tensor steps = at::full({}, static_cast<float>(++moments.steps),
                                at::TensorOptions().device(recipe_.device));
    const auto& rule = recipe_.adamw.decay;
    const bool decays = rule.patterns.empty() || glob_match_any(rule.patterns, name);
    at::_fused_adamw_({masters_[name]}, {g}, {moments.average}, {moments.square}, {}, {steps},
                      recipe_.lr, recipe_.adamw.beta1, recipe_.adamw.beta2,
                      decays ? rule.weight_decay : 0.0, recipe_.adamw.eps, false, false);
  }
  return outcome;
}

}  // namespace floe::test
