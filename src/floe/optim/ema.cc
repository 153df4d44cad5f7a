#include "floe/optim/ema.h"

#include <ATen/core/grad_mode.h>

#include "floe/core/error.h"
#include "floe/nn/activations/host_store.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/group/offloadable_slice.h"
#include "floe/shard/group/regroup.h"
#include "floe/shard/plan/plan.h"

namespace floe::optim {
namespace {

using shard::OffloadableSlice;

std::int64_t total(const std::vector<OffloadableSlice>& slices,
                   std::int64_t (OffloadableSlice::*bytes)() const) {
  std::int64_t sum = 0;
  for (const OffloadableSlice& slice : slices) sum += (slice.*bytes)();
  return sum;
}

}  // namespace

Ema::Ema(shard::Engine& engine, double decay) : engine_(engine), decay_(decay) {
  require<ConfigError>(decay >= 0 && decay < 1,
                       "train.ema.decay must be at least 0 and below 1, not ", decay);
  for (const shard::FlatGroup* group : engine.trainable_groups())
    averages_.push_back(start(*group));
  engine.add_owner(this);
}

Ema::~Ema() { engine_.remove_owner(this); }

const at::Tensor& Ema::slice(std::size_t group_index) const {
  return averages_[group_index].values();
}

const at::Tensor& Ema::held(std::size_t group_index) const { return averages_[group_index].held(); }

shard::OffloadableSlice Ema::start(const shard::FlatGroup& group) const {
  const at::AutoGradMode grad_off(false);
  const at::Tensor values = group.values();
  if (group.plan().active || !group.plan().leaves_device())
    return shard::OffloadableSlice(
        values.to(group.slice().device(), at::kFloat, /*non_blocking=*/false, /*copy=*/true));
  const at::Tensor stored = nn::store_empty(values.numel(), at::kFloat, engine_.world().device());
  stored.copy_(values);
  return shard::OffloadableSlice(stored, /*stored=*/true);
}

void Ema::update() {
  const at::AutoGradMode grad_off(false);
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g]->plan().active) continue;
    const at::Tensor average = averages_[g].values();
    average.lerp_(groups[g]->slice().to(at::kFloat), 1 - decay_);
  }
}

void Ema::restart() {
  const at::AutoGradMode grad_off(false);
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const at::Tensor average = averages_[g].values();
    average.copy_(groups[g]->values());
  }
}

void Ema::exchange(bool back) {
  const at::AutoGradMode grad_off(false);
  in_place_ = !back;
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const at::Tensor values = groups[g]->slice(), average = averages_[g].values();
    if (groups[g]->plan().masters_away()) {
      // The slice is only a rounded copy: averages stay where they are, and the copy comes back. No
      // rank waits for another meanwhile, since one that has failed ends this too.
      if (back) {
        values.copy_(set_aside_.at(g));
        groups[g]->slice_changed();
        set_aside_.erase(g);
      } else {
        set_aside_.emplace(g, values.clone());
        groups[g]->store(average);
      }
      continue;
    }
    const at::Tensor kept = values.clone();
    values.copy_(average);
    average.copy_(kept);
  }
}

std::int64_t Ema::state_bytes() const { return total(averages_, &OffloadableSlice::device_bytes); }
std::int64_t Ema::stored_bytes() const { return total(averages_, &OffloadableSlice::stored_bytes); }
std::int64_t Ema::due_bytes() const { return total(averages_, &OffloadableSlice::due_bytes); }

void Ema::deactivate(std::size_t set, std::size_t next) {
  require<ShardError>(!in_place_,
                      "another set is to train while averages are in the place of the weights; end "
                      "Ema::InPlace first");
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const shard::PlannedGroup& group = groups[g]->plan();
    if (group.trains_in(set) && !group.trains_in(next) && group.leaves_device())
      averages_[g].store();
  }
}

void Ema::activate(std::size_t set) {
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (groups[g]->plan().trains_in(set))
      averages_[g].fetch(groups[g]->slice().device(), engine_.move_stream());
}

void Ema::prefetch() {
  for (const auto& average : averages_) average.prefetch();
}

void Ema::relayout(const shard::Relayout& relayout) {
  std::vector<at::Tensor> slices;
  for (const auto& average : averages_) slices.push_back(average.values());
  const std::vector<at::Tensor> after = relayout.apply(slices);
  std::vector<shard::OffloadableSlice> before = std::exchange(averages_, {});
  const auto groups = engine_.trainable_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const shard::Relayout::Part& part = relayout.parts()[g];
    if (part.from == shard::Relayout::kNone) {
      averages_.push_back(start(*groups[g]));
    } else if (!part.before) {
      averages_.push_back(std::move(before[part.from]));
    } else {
      averages_.emplace_back(after[g].to(groups[g]->slice().device()));
      if (before[part.from].stored()) averages_.back().store();
    }
  }
}

}  // namespace floe::optim
