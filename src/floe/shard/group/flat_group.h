// One group at run time: a slice of a flat buffer, the buffer itself while it is whole, and the
// gradients on their way from whole to slice.
//
// Note [Zero copy]
// The parameters are leaf tensors that view one persistent storage. Gathering puts a pool buffer
// under that storage and all-gathers straight into it; releasing takes the buffer away again. Tensors
// that autograd saved keep pointing to the storage, so they see the parameters again when backward
// has gathered them. The parameters have version counters of their own, so refilling is not a
// modification for autograd. While a group is released its parameters stand on another storage that
// throws when it is read: an operator outside the unit gets an error that says so, not a crash.
//
// Note [Who needs the parameters in backward]
// Nobody has to say it: what backward reads, autograd has saved, and what it saved it refers to. If
// after a forward the parameters and their storage have no more references than at rest, its backward
// does without them (an embedding's does), and they are not gathered for it. Another reference (a
// graph that is still alive, a handle of the user's) makes them be gathered needlessly; it has to be
// there on all ranks or on none.
//
// Note [Gradients]
// A gradient that autograd has finished is moved into its place in a flat buffer of the reduction's
// dtype at once and forgotten by the parameter (a group of one parameter takes it over as it is). When the last parameter of the group has arrived, the
// buffer is the reduce-scatter's input. At most one reduction is under way while the next buffer
// fills. Where nothing is sliced and dtypes agree, the buffer is the gradient itself.
//
// Note [Masters that are away]
// A group that rests is gathered from slices of the gathered dtype when its masters have left the device
// (Rest): it then takes the memory of a frozen group. The masters lie in the host store, or are forgotten;
// what has never trained keeps those that were read from the files until it does.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <string>
#include <vector>

#include "floe/shard/group/context.h"
#include "floe/shard/group/offloadable_shard.h"
#include "floe/shard/plan/plan.h"

namespace floe::shard {

class FlatGroup {
 public:
  // Makes the slices, uninitialised. Collective: its process groups are made on first use.
  FlatGroup(std::size_t id, const PlannedGroup& plan, const ShardPlan& whole, Context& context);
  ~FlatGroup();
  FlatGroup(const FlatGroup&) = delete;
  FlatGroup& operator=(const FlatGroup&) = delete;

  std::size_t id() const { return id_; }
  const PlannedGroup& plan() const { return *plan_; }
  const std::string& name() const { return plan_->name; }
  const PlannedParameter& parameter(std::size_t index) const;

  // Turns the model's parameters into views of this group; their own memory, if any, is freed.
  void adopt_parameters();
  // The model's tensor for a parameter.
  const at::Tensor& leaf(std::size_t index) const { return parameter(index).tensor; }
  // The storages that an operator's input may have when it is a parameter or a view of one.
  const c10::StorageImpl* storage() const { return flat_.storage().unsafeGetStorageImpl(); }
  const c10::StorageImpl* released_storage() const { return unreadable_.unsafeGetStorageImpl(); }

  // This rank's slice in storage dtype [shard_numel]; the optimizer updates it, gathers read it. Of a
  // group in 8 bits: bytes [slice_bytes], codes and scales.
  const at::Tensor& shard() const { return shard_; }
  // What its numbers are stored as.
  c10::ScalarType stored_dtype() const {
    return plan_->eight_bit() ? plan_->storage_dtype : shard_.scalar_type();
  }
  // The most precise slice there is: the masters, wherever they are.
  at::Tensor values() const { return masters_.defined() ? masters_.values() : shard_; }
  // After `values` was written to: what is gathered follows.
  void values_changed();
  // Bytes of masters in the host store.
  std::int64_t stored_bytes() const { return masters_.stored_bytes(); }

  // ---- sets: the plan says already what the group is to be (ShardPlan::activate) ----
  // Stops training: no gradients from now on; masters leave, if they are to.
  void rest();
  // Begins to train. The compute stream waits for the masters: the next gather reads them.
  void wake();
  // Another plan says the same about it.
  void rebind(std::size_t id, const PlannedGroup& plan, const ShardPlan& whole);
  // Gives up the slices of a group that others have taken over.
  void forget_values();
  // Counts again who refers to the parameters while nothing computes.
  void count_references() { references_at_rest_ = references(); }
  // This rank's slice of the reduced gradient; undefined when none has arrived since `clear_gradient`.
  const at::Tensor& gradient() const { return gradient_; }
  std::vector<Piece> pieces() const { return plan_->layout.pieces(shard_rank_); }

  // ---- gathering. Collective over the shard group where it is sliced. ----
  bool whole() const { return state_ != State::released; }
  bool held() const { return holds_ > 0; }
  // Begins the all-gather unless the group is whole already.
  void begin_gather(std::string_view unit, bool ahead);
  // Waits for it; the parameters may be used now.
  void finish_gather(std::string_view unit);
  // Whole as long as somebody holds it.
  void hold() { holds_ += 1; }
  // `again_soon`: another unit of this pass uses it, so it stays whole without a holder.
  void drop(std::string_view unit, bool again_soon = false);
  // Gives up what was gathered ahead and never used.
  void drop_unused();
  // Gives up everything that a broken pass left: holds, buffers, gradients.
  void reset() noexcept;

  // Whether anybody refers to the parameters or their storage beyond those who always do.
  bool is_saved() const { return references() > references_at_rest_; }

  // Whole copies of the values and the gradient, for tests and exports. Collective over the shard group.
  at::Tensor gather_values();
  at::Tensor gather_gradient();
  // The slices of all ranks as they are stored; with 8 bits, codes and scales.
  at::Tensor gather_stored();
  // Of any slice with this layout; the result is on the device.
  at::Tensor gather_slice(const at::Tensor& slice) { return gathered(slice, "gather slices"); }

  // ---- gradients ----
  // Called when autograd has finished the gradient of parameter `index`. True when it was the last.
  bool accumulate(std::size_t index);
  // Something arrived since the last reduction.
  bool has_unreduced() const { return dirty_; }
  // Every parameter has received its gradient in this backward.
  bool complete() const { return num_arrived_ == plan_->parameters.size(); }
  void begin_backward();
  // Collective over the group's mesh: parameters without a gradient count as zero.
  void begin_reduce();
  void finish_reduce();
  bool reducing() const { return reduction_.pending(); }
  bool reduced() const { return reduction_.done(); }
  void clear_gradient();

  // What a backward finds and leaves, apart from values (Engine::repeat_pass).
  struct GradientState {
    bool arrived = false;  // there is a gradient
    bool reduced = false;  // it holds a finished reduction
    bool operator==(const GradientState&) const = default;
  };
  GradientState gradient_state() const { return {gradient_.defined(), gradient_reduced_}; }
  // With gradients that stay in place only: their memory holds that state already.
  void set_gradient_state(const GradientState& state);
  // Of the gradient slice, also while it is kept for the next one.
  std::int64_t gradient_bytes() const;

 private:
  enum class State { released, gathering, whole };

  at::TensorOptions shard_options() const;
  // Makes the parameters views of `flat_`, new where it is to be another one.
  void make_views();
  void set_trainable(bool trainable);
  std::int64_t references() const;
  // Puts this memory under the parameters; null takes it away.
  void attach(void* data);
  // Of a group in 8 bits: from codes and scales to what the parameters view.
  void make_values();
  void give_back_staging();
  void release(std::string_view unit);
  // The gradient buffer is the gradient: nothing is sliced, dtypes agree.
  bool gradient_in_place() const;
  // Memory for a gradient slice: new, or, where gradients stay in place, always the same.
  at::Tensor gradient_memory();
  void open_gradient_buffer();
  // Makes the gradient itself the buffer, where it has its size, dtype and layout.
  bool take_over(const at::Tensor& gradient);
  void close_gradient_buffer();
  at::Tensor gathered(const at::Tensor& slice, const char* what);

  std::size_t id_;
  const PlannedGroup* plan_;
  const ShardPlan* whole_plan_;
  Context& context_;
  const comm::Mesh& mesh_;
  int shard_rank_;

  at::Tensor shard_;
  MovingSlice masters_;      // in the store, while they are apart from `shard_`
  at::Tensor flat_;          // [padded] over the persistent storage
  c10::Storage unreadable_;  // under the parameters while the group is released
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  std::int64_t references_at_rest_ = 0;
  State state_ = State::released;
  int holds_ = 0;
  at::Tensor buffer_;   // from the pool, under the storage
  at::Tensor staging_;  // from the pool: codes and scales until the values are made
  SideOp gather_;

  at::Tensor gradient_;          // [shard_numel], storage dtype
  at::Tensor gradient_place_;    // its memory, where gradients stay in place
  at::Tensor unreduced_;         // [padded], reduce dtype
  at::Tensor unreduced_buffer_;  // from the gradient pool; undefined when in place
  std::vector<bool> filled_;     // which parameters have a value in `unreduced_`
  std::vector<bool> arrived_;    // ... received one in this backward
  std::size_t num_arrived_ = 0;
  bool dirty_ = false;
  bool gradient_reduced_ = false;  // `gradient_` holds a finished reduction
  SideOp reduction_;
  at::Tensor reduced_;  // the reduction's output
};

}  // namespace floe::shard
