// The judge: the same training in one process, with torch alone. It sees the batches of all ranks
// and never touches floe.
#pragma once

#include <ATen/ops/mse_loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "model.h"

namespace plain {

// A set of parameters by the beginnings of their names, and the steps that it trains.
struct Set {
  std::vector<std::string> prefixes;
  std::function<bool(int64_t step)> trains;
};

struct Job {
  std::vector<Set> sets;
  std::vector<int> worlds;  // how many ranks took part in each step so far
  double lr = 0, max_norm = 0;
  int64_t warmup_steps = 0, total_steps = 0;
  std::function<std::pair<at::Tensor, at::Tensor>(int64_t step, int rank)> batch;
};

// Linear warm-up, then half a cosine.
inline double rate(const Job& job, int64_t step) {
  if (step < job.warmup_steps)
    return job.lr * static_cast<double>(step) / static_cast<double>(job.warmup_steps);
  const double progress = static_cast<double>(step - job.warmup_steps) /
                          static_cast<double>(job.total_steps - job.warmup_steps);
  return job.lr * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

// The parameters before and after.
struct Result {
  std::map<std::string, at::Tensor> before, after;
};

inline Result train(const Job& job) {
  at::manual_seed(0);
  NetImpl<BlockImpl> net;
  Result result;
  for (const auto& item : net.named_parameters())
    result.before[item.key()] = item.value().detach().clone();

  std::vector<std::vector<at::Tensor>> of_set;
  std::vector<std::unique_ptr<torch::optim::AdamW>> optimizers;
  for (const Set& set : job.sets) {
    auto& parameters = of_set.emplace_back();
    for (const auto& item : net.named_parameters())
      for (const std::string& prefix : set.prefixes)
        if (item.key().starts_with(prefix)) parameters.push_back(item.value());
    optimizers.push_back(std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(job.lr).weight_decay(0)));
  }

  for (std::size_t step = 0; step < job.worlds.size(); ++step) {
    const auto number = static_cast<int64_t>(step);
    for (at::Tensor& parameter : net.parameters()) {
      parameter.requires_grad_(false);
      parameter.mutable_grad().reset();
    }
    for (std::size_t s = 0; s < job.sets.size(); ++s)
      if (job.sets[s].trains(number))
        for (at::Tensor& parameter : of_set[s]) parameter.requires_grad_(true);
    for (int rank = 0; rank < job.worlds[step]; ++rank) {
      const auto [x, y] = job.batch(number, rank);
      (at::mse_loss(net.forward(x), y) / job.worlds[step]).backward();
    }
    for (std::size_t s = 0; s < job.sets.size(); ++s) {
      if (!job.sets[s].trains(number)) continue;
      torch::nn::utils::clip_grad_norm_(of_set[s], job.max_norm);
      for (auto& group : optimizers[s]->param_groups()) group.options().set_lr(rate(job, number));
      optimizers[s]->step();
    }
  }
  for (const auto& item : net.named_parameters())
    result.after[item.key()] = item.value().detach().clone();
  return result;
}

}  // namespace plain
