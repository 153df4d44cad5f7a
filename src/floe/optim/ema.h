// An exponential moving average of what trains, sliced like it: average ← decay × average +
// (1 − decay) × value after every update. Nothing is communicated.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "floe/shard/engine.h"

namespace floe::optim {

class Ema {
 public:
  // Starts from the current values. Throws ConfigError unless 0 <= decay < 1.
  Ema(shard::Engine& engine, double decay);

  double decay() const { return decay_; }
  // After an optimizer's step.
  void update();

  // Exchanges averages and values while it lives: forwards see the averages. Between steps only.
  class InPlace {
   public:
    explicit InPlace(Ema& ema) : ema_(ema) { ema_.exchange(); }
    ~InPlace() { ema_.exchange(); }
    InPlace(const InPlace&) = delete;
    InPlace& operator=(const InPlace&) = delete;

   private:
    Ema& ema_;
  };

  // The averages of a trainable group's slice, fp32 [shard_numel], as a checkpoint has them.
  const at::Tensor& slice(std::size_t group_index) const { return averages_[group_index]; }
  // Starts again from the current values: for a checkpoint that has no averages.
  void restart();
  // Bytes on this rank.
  std::int64_t state_bytes() const;

 private:
  void exchange();

  shard::Engine& engine_;
  double decay_;
  std::vector<at::Tensor> averages_;
};

}  // namespace floe::optim
