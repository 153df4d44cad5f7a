// The engine: a model whose parameters, gradients and optimizer state are sliced over ranks.
//
//   auto world = comm::World::join();
//   auto engine = shard::fully_shard(model, {.units = {"DecoderLayer"}}, {.world = world});
//   auto loss = ...model(ids)...;
//   loss.backward();
//   auto step = engine->agree();              // one small all-reduce: global norm, all finite?
//   if (step.finite) optimizer.step();
//
// Threads: forward, backward and every call here come from one thread (backward may run on
// autograd's device thread meanwhile). Collective functions must be called by all ranks in
// the same order.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "floe/shard/bytes.h"
#include "floe/shard/observer.h"
#include "floe/shard/options.h"

namespace floe::comm {
class World;
}

namespace floe::shard {

class FlatGroup;
class SideStream;
class SliceOwner;
struct PassRecord;
struct ShardPlan;

// What all ranks know before an update.
struct Agreement {
  double gradient_norm = 0;  // global L2 norm over every trainable element
  // No rank saw a gradient, or has a number on the device, or said of its loss, that is not finite.
  bool finite = true;
  // Of this rank's own numbers and of what it said; reduced gradients are everybody's.
  bool locally_finite = true;
  // Of what each rank passed along; what is not finite on a device counts as 0.
  std::vector<double> sums;
};

// Bytes that this rank holds now, by owner; peaks are those since Engine::reset_memory_peaks.
struct MemoryInUse {
  std::int64_t trainable_slices = 0;  // masters of the active set
  std::int64_t resting_slices = 0;    // of the other sets
  std::int64_t frozen_slices = 0, gradient_slices = 0;
  std::int64_t stored_masters = 0;  // in host memory
  std::int64_t pool_held = 0, pool_used = 0, pool_peak = 0;
  std::int64_t gradient_pool_held = 0, gradient_pool_peak = 0;
};

class Engine {
 public:
  // Collective: see fully_shard.
  Engine(std::shared_ptr<torch::nn::Module> model, const Policy& policy, ShardOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ShardOptions& options() const;
  comm::World& world() const;
  torch::nn::Module& model() const;

  // Bytes that this rank holds and moves with the active set, by the closed formula.
  HeldBytes held() const;
  MovedBytes moved() const;

  // ---- which set trains (see Note [Sets]) ----
  const std::vector<ParameterSet>& sets() const;
  std::size_t active_set() const;
  // Collective, between steps: from now on this set trains, and only it. No parameter moves; ranks
  // wait for each other only where something that stops training is stored in 8 bits from now on,
  // for two numbers of each of its groups. State and masters of the set before leave the device
  // first, then those of this one arrive. Gradients are forgotten.
  void activate(std::size_t set);
  // Collective, between steps: the same for parameters by pattern, announced or not; returns the
  // set. A new set divides groups; those that change are laid out anew, one at a time. Masters of
  // what was frozen start from the stored values, or are read again from ShardOptions::source. For
  // a set that is known the options change nothing.
  struct SetOptions {
    Rest rest = Rest::keep;
    bool reread = false;
  };
  std::size_t set_trainable(const std::vector<std::string>& patterns, SetOptions options);
  std::size_t set_trainable(const std::vector<std::string>& patterns) {
    return set_trainable(patterns, SetOptions());
  }

  // On, as in the beginning: the next backward is the last one of its update, and gradients are
  // summed over all ranks. Off: more passes follow, and gradients add up (see Note [Accumulation]):
  // those of sliced groups after their reduce-scatter or whole, as ShardOptions::accumulate says,
  // and nothing is summed over copies.
  void set_gradient_sync(bool on);

  // Collective: the global gradient norm, whether everything is finite on all ranks, and the sums
  // over ranks of `values` and, behind them, of those that are still `on_device` (losses), in one
  // small all-reduce and with one wait for the device. Throws ShardError on all ranks when they
  // have issued different collectives since the start (see Note [Agreement on order]), and where
  // the last backward ran without gradient sync.
  Agreement agree(bool locally_finite = true, std::span<const double> values = {},
                  const at::Tensor& on_device = {});
  // From now on, or no longer: the squared norm of this rank's own gradients, before any reduction,
  // is kept for take_local_square. Costs a pass over the gradients of each backward.
  void measure_local_gradients(bool on);
  // Of all reductions since the last call; waits for the device.
  double take_local_square();
  // Collective, between steps: what several ranks hold a copy of is the same everywhere, to the
  // bit; throws ShardError on all ranks otherwise. Moves some bytes per group; without copies
  // nothing.
  void verify_copies() const;
  // Forgets all gradients; the next backward starts anew.
  void clear_gradients();

  // Collective: true when any rank has work. Loops of unequal length stay in step with it:
  //   while (engine->any_rank_has(batch.has_value()))
  //     if (batch) evaluate(*batch); else engine->empty_forward();
  bool any_rank_has(bool work);
  // The same for several kinds of work at once, one answer for each.
  std::vector<bool> any_rank_has(const std::vector<bool>& work);
  // Collective: takes part in a forward without gradients of the other ranks.
  void empty_forward();

  // Collective: a whole parameter in storage dtype (in 8 bits: the values that are computed with),
  // or its whole gradient (undefined when there is none). By any of its names; throws ShardError
  // for an unknown one.
  at::Tensor full_parameter(const std::string& name);
  at::Tensor full_gradient(const std::string& name);

  // After an exception in a forward or backward that is to be survived (on all ranks together):
  // drops what the broken pass held, its gradients included.
  void abandon();

  // Not owned; told of everything from now on.
  void add_observer(Observer* observer);
  void remove_observer(Observer* observer);

  MemoryInUse memory() const;
  void reset_memory_peaks();

  // ---- for optimizers, checkpoints and diagnostics: types whose headers are not installed ----
  const ShardPlan& plan() const;
  // The groups that some set trains, in plan order: slices, their gradients and what
  // they consist of.
  std::span<FlatGroup* const> trainable_groups() const;
  // Those of the set that trains now.
  std::span<FlatGroup* const> active_groups() const;
  const std::vector<std::unique_ptr<FlatGroup>>& groups() const;
  // Not owned; follows the sets from now on.
  void add_owner(SliceOwner* owner);
  void remove_owner(SliceOwner* owner);
  // Where what comes back from the host store is copied, behind the computation.
  SideStream& move_stream();

  // ---- passes whose work on the device is recorded and replayed (see Note [Repeated passes]) ----
  // From now on a gradient slice keeps its memory from one step to the next.
  void keep_gradients_in_place();
  // Counts the changes of what a recorded pass relies on: which groups train, and where they lie.
  std::uint64_t layout_number() const;
  // False while somebody needs passes that really run: observers of clocks or memory,
  // measure_local_gradients, or a set whose state comes back behind the next backward.
  bool may_repeat() const;
  // Everything on the host, apart from the batch, that decides what a training pass issues.
  std::vector<std::int64_t> pass_key() const;
  // Runs a training pass; what it leaves behind on the host is the result.
  PassRecord record_pass(const std::function<void()>& pass);
  // The device repeats, or has repeated, the work of that pass, with gradients that stay in place;
  // here follows what it left behind on the host.
  void repeat_pass(const PassRecord& record);
  // Collective: whether all ranks pass the same word.
  bool ranks_agree(std::uint64_t word);

 private:
  struct State;

  // Lists and hooks follow which groups are active.
  void follow_active();
  void require_idle(const char* what) const;
  void lay_out_anew(ShardPlan plan, bool reread);
  FlatGroup& group_of(const std::string& name, std::size_t& index);
  // Of each gradient there is; where ranks share a slice, their share of it. Double, on the device.
  at::Tensor gradient_norms() const;

  std::unique_ptr<State> state_;
};

// Shards a model in place: parameter names, types and the way it is called stay as they are.
// Collective: all ranks, with the same model, policy and options; ranks that differ fail with the
// first difference. Throws ConfigError for a policy that matches nothing.
std::shared_ptr<Engine> fully_shard(std::shared_ptr<torch::nn::Module> model, const Policy& policy,
                                    const ShardOptions& options);

}  // namespace floe::shard
