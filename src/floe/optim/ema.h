// An exponential moving average of what trains, sliced like it: average ← decay × average + (1 −
// decay) × value after every update. Nothing is communicated. Averages of a set that rests do
// not move; they leave the device where the set's masters do (and are kept in host memory where
// those are dropped).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "floe/shard/engine.h"
#include "floe/shard/slice_owner.h"

namespace floe::shard {
class OffloadableSlice;
}

namespace floe::optim {

class Ema final : public shard::SliceOwner {
 public:
  // Starts from the current values. Throws ConfigError unless 0 <= decay < 1.
  Ema(shard::Engine& engine, double decay);
  ~Ema() override;
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  double decay() const { return decay_; }
  // After an optimizer's step.
  void update();

  // Exchanges averages and values while it lives: forwards see the averages. Between steps only.
  class InPlace {
   public:
    explicit InPlace(Ema& ema) : ema_(ema) { ema_.exchange(/*back=*/false); }
    ~InPlace() { ema_.exchange(/*back=*/true); }
    InPlace(const InPlace&) = delete;
    InPlace& operator=(const InPlace&) = delete;

   private:
    Ema& ema_;
  };

  // The averages of a trainable group's slice, fp32 [slice_numel], as a checkpoint has them,
  // wherever they are now.
  const at::Tensor& slice(std::size_t group_index) const;
  // The same to be read only (see OffloadableSlice::held).
  const at::Tensor& held(std::size_t group_index) const;
  // Starts again from the current values: for a checkpoint that has no averages.
  void restart();
  // Bytes on this rank: on the device, and in the host store.
  std::int64_t state_bytes() const;
  std::int64_t stored_bytes() const;
  // Of what is stored: on its way back behind the next backward.
  std::int64_t due_bytes() const;

  void deactivate(std::size_t set, std::size_t next) override;
  void activate(std::size_t set) override;
  void prefetch() override;
  void relayout(const shard::Relayout& relayout) override;

 private:
  // From the current values.
  shard::OffloadableSlice start(const shard::FlatGroup& group) const;
  void exchange(bool back);

  shard::Engine& engine_;
  double decay_;
  std::vector<shard::OffloadableSlice> averages_;
  bool in_place_ = false;                        // the averages, where the values are
  std::map<std::size_t, at::Tensor> set_aside_;  // meanwhile: what they would be rounded to
};

}  // namespace floe::optim
