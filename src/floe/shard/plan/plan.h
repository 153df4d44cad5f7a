// The resolved plan: which parameters form which groups of which units, and what that costs. Made
// from a model without memory and a world size, so that `floe plan` and the engine cannot differ.
//
// Note [Units and groups]
// A *unit* is a module subtree whose parameters are gathered together; inner units are apart. What
// no unit covers belongs to the root unit. A *group* is the part of a unit's parameters that share
// trainability, dtypes and the ranks they are sliced over; it is what a collective moves. A
// parameter that several units use (tied weights) is in a group of its own, which all of them list.
//
// Note [Sets]
// A *set* is what trains at one time; without phases there is one. Which sets train a parameter is
// part of its group's key, so a switch to another set (Engine::activate) moves no parameter and
// changes no layout. A group that the active set does not train *rests*: it is frozen in every
// respect, has no gradient and is gathered like a frozen one. What some set trains has fp32
// masters; those of a resting group stay on the device or leave it, as its set says (Rest). Slices
// of a group whose masters are away are stored as frozen ones are, in 8 bits too where frozen
// matrices are: such matrices are groups of their own, and those that are forgotten for good
// (Rest::drop) keep values, since no master begins from 8 bits.
//
// Note [Frozen matrices in 8 bits]
// With FrozenOptions::dtype int8 or fp8 the frozen weights of linear layers are groups of their
// own, whose slices are codes and scales (Note [Eight bits]). They are gathered as they are stored,
// into a second buffer of the pool, and the values are made from there into the first one, behind
// the gather; the second goes back when the unit begins. A group that every rank holds whole needs
// no second buffer. What some set trains is stored so while it rests and its masters wait in the
// host store. Embeddings, heads, tied weights, norms and biases never are.
//
// Note [Frozen matrices that are multiplied in 8 bits]
// With FrozenOptions::compute fp8 those of them that a module of floe's own multiplies with
// (nn::Module::multiplies), and whose sides are multiples of 16, are again groups of their own:
// their parameters are codes (Note [Weights that are codes]), no values are ever made. All others,
// those of foreign modules among them, are as with FrozenOptions::dtype fp8.
//   - Sliced or offloaded: a gather brings the slices into the second buffer, as above, and from
//     there codes, the scales of all rows and, where some set's backward comes through the group,
//     the transposed codes are laid out in the first (CodesLayout). That is N bytes, or 2N with
//     transposed codes: half of bf16, or as much.
//   - Whole on this rank: the slice is codes and scales already, so the parameters are views of it,
//     always (GroupState::in_place); transposed codes lie beside it. Nothing is gathered or made.
// Whether backward comes through is the plan's closed formula, over all sets: which one trains
// changes no layout. Where the formula says no and backward comes all the same, nn::linear
// transposes for that one product. A set that is added later (Engine::set_trainable) and
// trains such a matrix divides its group as it does others in 8 bits: masters are read from
// the files again.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "floe/kernels/eight_bit/eight_bit.h"
#include "floe/nn/boundary.h"
#include "floe/nn/init.h"
#include "floe/shard/bytes.h"
#include "floe/shard/options.h"
#include "floe/shard/plan/layout.h"
#include "floe/shard/plan/mask.h"

namespace floe::shard {

// Whether an entry of a policy names the module of that dotted name: "DecoderLayer" by its class,
// "layers.*", which has one of . * ? [, by its name.
bool names_module(const std::string& entry, const std::string& name,
                  const torch::nn::Module& module);

struct PlannedParameter {
  std::string name;
  std::vector<std::string> other_names;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  SetMask sets;                         // that train it
  bool trainable = false;               // in some set
  c10::ScalarType dtype = c10::kFloat;  // before it was sharded
  bool used_twice = false;              // by several modules
  bool read_in_backward = true;         // its modules' backward reads it
  bool is_matrix = false;               // of one linear layer: what 8 bits are for
  bool multiplies = false;              // and its module can multiply with codes
  at::Tensor tensor;
  const nn::Init* init = nullptr;

  bool trains_in(std::size_t set) const { return sets.has(set); }
};

// Where a gathered group of codes has what, in bytes.
struct CodesLayout {
  std::int64_t scales = 0;      // fp32, of all rows; the codes begin at 0
  std::int64_t transposed = 0;  // codes, each matrix at its offset in the flat layout
  std::int64_t bytes = 0;
};

struct PlannedGroup {
  std::string name;                     // "layers.3 frozen"
  std::vector<std::size_t> units;       // that use it; the first is its home
  std::vector<std::size_t> parameters;  // in flat order
  SetMask sets;                         // that train it
  bool trainable = false;               // in some set: it has masters
  bool active = false;                  // in the set that trains now
  Rest rest = Rest::keep;  // what its masters do while it rests: keep if one of its sets keeps, ...
  bool resident = false;   // whole on every rank, nothing to gather
  Strategy strategy = Strategy::full_shard;
  int shard_size = 1;                           // over how many ranks it is sliced
  int replicas = 1;                             // how many ranks hold the same slice
  c10::ScalarType storage_dtype = c10::kFloat;  // of the slices; fp32 masters for what trains
  c10::ScalarType master_dtype = c10::kFloat;   // of what some set trains
  c10::ScalarType rest_dtype = c10::kFloat;     // of the slices while nothing of it trains
  c10::ScalarType param_dtype = c10::kFloat;    // gathered
  c10::ScalarType reduce_dtype = c10::kFloat;   // of its gradients' reduction
  bool offloaded = false;          // slices, gradients and optimizer state in host memory
  bool needed_in_backward = true;  // by the closed formula; the engine looks at the graph
  FlatLayout layout;
  kernels::EightBitSlices eight_bit_slices;  // of a group that is ever stored in 8 bits
  bool multiplies = false;                   // in 8 bits, whenever it is stored so
  bool multiplied = false;                   // ... as it is now: its parameters are codes
  bool transposed = false;                   // ... and backward comes through them in some set

  // The slices are codes and scales now; whenever they are not masters; and there is nothing else.
  bool eight_bit() const { return is_coded(storage_dtype); }
  bool eight_bit_at_rest() const { return is_coded(rest_dtype); }
  bool eight_bit_alone() const { return eight_bit() && !trainable; }
  CodesLayout codes_layout() const;     // of a group that is multiplied in 8 bits
  std::int64_t gathered_bytes() const;  // 0 when nothing has to be gathered
  std::int64_t moved_bytes() const;     // by one gather: what it brings together
  std::int64_t staging_bytes() const;   // beside the gathered values, until they are made
  std::int64_t slice_bytes() const;     // with the transposed codes that lie beside it
  std::int64_t gradient_bytes() const;  // the reduction's input; 0 for what does not train now
  bool trains_in(std::size_t set) const { return sets.has(set); }
  // Whether masters and averages are off the device while it rests.
  bool leaves_device() const { return rest != Rest::keep && !offloaded; }
  // Resting, with its masters elsewhere: the slices have the dtype of rest.
  bool masters_away() const { return trainable && storage_dtype != master_dtype; }
  bool keep_until_backward() const { return entry_of(strategy).keep_until_backward; }
  // The slice is the whole and has the form that is computed with: parameters are views of it,
  // always.
  bool in_place() const {
    return shard_size == 1 && (storage_dtype == param_dtype || multiplied) && !offloaded;
  }

 private:
  bool is_coded(c10::ScalarType dtype) const {
    return dtype != param_dtype && kernels::is_eight_bit(dtype);
  }
};

struct PlannedUnit {
  std::string name;  // dotted; "" is the root
  std::string class_name;
  torch::nn::Module* module = nullptr;
  nn::BoundarySlot* slot = nullptr;  // null: a foreign module without a boundary
  std::vector<std::size_t> groups;
  bool recomputes = false;  // it, or something inside it, runs its forward again in backward
  std::string label() const { return name.empty() ? "(root)" : name; }
};

// A module whose forward runs again in backward.
struct PlannedCheckpoint {
  std::string name;
  torch::nn::Module* module = nullptr;
  nn::BoundarySlot* slot = nullptr;
};

// How many modules a share of so many is: rounded up, at least one.
std::int64_t share_of(double share, std::int64_t modules);

struct ShardPlan {
  int world_size = 1;
  int prefetch = 1;
  int passes_per_update = 1;
  std::optional<Accumulate> accumulate;  // as chosen; null: by the rule of `accumulates`
  std::vector<PlannedParameter> parameters;
  std::vector<PlannedGroup> groups;
  std::vector<PlannedUnit> units;  // in registration order; the root last
  std::vector<PlannedCheckpoint> checkpointed;
  // With a backward in some set, of those that each entry of ShardOptions::activation_checkpointing
  // names: what ShardOptions::checkpointed_share is a share of.
  std::vector<std::int64_t> checkpointable;
  std::vector<ParameterSet> sets;  // at least one; without phases it has no name
  std::size_t active_set = 0;

  // Makes `set` the active one; what the groups store, hold and move follows from it.
  void activate(std::size_t set);

  HeldBytes held() const;
  MovedBytes moved() const;  // in an update
  // Where gradients of sliced groups add up. Unless it was chosen: `local`, if that makes the peak
  // of what a rank holds at most a tenth higher, gradients are reduced in the masters' dtype (so
  // that sums lose nothing), and slices are on the device; else `reduced`.
  Accumulate accumulates() const;
  // How often a forward and backward gathers the group, from the second step on (the first one
  // cannot know yet which unit is the last).
  int gathers_per_step(const PlannedGroup& group) const;
  // The memory that gathered parameters may take: a unit, those around it and those gathered ahead,
  // the largest such neighbourhood of the model.
  std::int64_t pool_bytes() const;
  // The names of these sets.
  std::string names_of(SetMask chosen, const char* between) const;
  // One line per unit, group and parameter: what ranks must agree on.
  std::vector<std::string> lines() const;

 private:
  HeldBytes held(bool whole_gradients) const;
};

// Divides the group's parameters, in their order, into `shard_size` slices.
void lay_out(PlannedGroup& group, const std::vector<PlannedParameter>& parameters);

// The group is no longer sliced.
void make_resident(PlannedGroup& group);

// Residency::automatic: makes frozen groups resident while all frozen parameters together fit into
// the budget, those first whose residence saves most traffic per byte.
void choose_residents(ShardPlan& plan, const FrozenOptions& options);

// Throws ConfigError for a policy or pattern that matches nothing (with near names), and for a unit
// that cannot be called through a boundary while watch_operators is off. `before`: the plan that
// the model is sharded by already, when another one is made for it.
ShardPlan make_plan(torch::nn::Module& root, const Policy& policy, const ShardOptions& options,
                    int world_size, const ShardPlan* before = nullptr);

}  // namespace floe::shard
