// One group at run time: a slice of a flat buffer, and the buffer itself while it is gathered.
// GroupState says what is held when; the group's gradient has a file of its own.
//
// Note [Zero copy]
// The parameters are leaf tensors that view one persistent storage. Gathering puts a pool buffer
// under that storage and all-gathers straight into it; releasing takes the buffer away again.
// Tensors that autograd saved keep pointing to the storage, so they see the parameters again when
// backward has gathered them. The parameters have version counters of their own, so refilling is
// not a modification for autograd. While a group is released its parameters stand on another
// storage that throws when it is read: an operator outside the unit gets an error that says so,
// not a crash.
//
// Note [Who needs the parameters in backward]
// Nobody has to say it: what backward reads, autograd has saved, and what it saved it refers to. If
// after a forward the parameters and their storage have no more references than at rest, its
// backward does without them (an embedding's does), and they are not gathered for it. Another
// reference (a graph that is still alive, a handle of the user's) makes them be gathered
// needlessly; it has to be there on all ranks or on none.
//
// Note [Masters that are away]
// A group that does not train is gathered from slices like those of a frozen group when its masters
// have left the device (Rest): of the gathered dtype, or, while they lie in the host store, in
// 8 bits where frozen matrices are. It then takes the memory of a frozen group, moves its bytes and
// is multiplied like one. Masters that are not in the store are forgotten; what has never trained
// keeps those that were read from the files until it does.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <string>
#include <vector>

#include "floe/nn/autograd_node.h"
#include "floe/shard/group/context.h"
#include "floe/shard/group/gradient.h"
#include "floe/shard/group/offloadable_slice.h"
#include "floe/shard/plan/plan.h"
#include "floe/shard/states.h"

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

  // This rank's slice in storage dtype [slice_numel]; the optimizer updates it, gathers read it. Of
  // a group in 8 bits: bytes [slice_bytes], codes and scales.
  const at::Tensor& slice() const { return slice_; }
  // Beside it, of a group that is multiplied in 8 bits and whole on this rank: the transposed codes
  // of all matrices, or undefined.
  const at::Tensor& transposed() const { return transposed_; }
  // What its numbers are stored as.
  c10::ScalarType stored_dtype() const {
    return plan_->eight_bit() ? plan_->storage_dtype : slice_.scalar_type();
  }
  // The most precise slice there is: the masters, wherever they are.
  at::Tensor values() const { return masters_.defined() ? masters_.values() : slice_; }
  // After `values` was written to: what is gathered follows. Collective over the shard group, as
  // `store` is.
  void values_changed();
  // Of a group whose masters are away: gathers these [slice_numel] from now on, until the slice is
  // written to or `values_changed` is called. Collective over the shard group where the slices are
  // in 8 bits: ranks tell each other of the rows that they share.
  void store(const at::Tensor& values);
  // After the slice itself was written to.
  void slice_changed();
  // Bytes of masters in the host store.
  std::int64_t stored_bytes() const { return masters_.stored_bytes(); }

  // ---- sets: the plan says already what the group is to be (ShardPlan::activate) ----
  // Stops training: no gradients from now on; masters leave, if they are to. Collective like
  // `store`.
  void deactivate();
  // Begins to train. The compute stream waits for the masters: the next gather reads them.
  void activate();
  // Another plan says the same about it.
  void rebind(std::size_t id, const PlannedGroup& plan, const ShardPlan& whole);
  // Gives up the slices of a group that others have taken over.
  void forget_values();
  // Counts again who refers to the parameters while nothing computes.
  void count_references() { references_at_rest_ = references(); }
  // Which of the copies of its slice this rank holds.
  int replica() const { return mesh_.replicate->rank(); }
  // The ranks that hold copies of its slice; null where this one is alone.
  comm::Group* copies() const;
  c10::Device device() const { return context_.device; }
  // Which of its slices this rank holds.
  int shard_rank() const { return shard_rank_; }
  std::vector<Piece> pieces() const { return plan_->layout.pieces(shard_rank_); }

  // ---- gathering. Collective over the shard group where it is sliced. ----
  GroupState state() const { return state_; }
  bool held() const { return holds_ > 0; }
  // Begins the all-gather if the group is sliced.
  void begin_gather(std::string_view unit, bool ahead);
  // Waits for it; the parameters may be used now.
  void finish_gather(std::string_view unit);
  // It stays gathered as long as somebody holds it.
  void hold() { holds_ += 1; }
  // `again_soon`: another unit of this pass uses it, so it stays gathered without a holder.
  void drop(std::string_view unit, bool again_soon = false);
  // Gives up what was gathered ahead and never used.
  void drop_unused();
  // Gives up everything that a broken pass left: holds, buffers, gradients.
  void reset() noexcept;

  // Whether anybody refers to the parameters or their storage beyond those who always do.
  bool is_saved() const { return references() > references_at_rest_; }

  // Whole copies of the values and the gradient, for tests and exports. Collective over
  // the shard group.
  at::Tensor gather_values();
  at::Tensor gather_gradient();
  // The slices of all ranks as they are stored; with 8 bits, codes and scales.
  at::Tensor gather_stored();
  // Of any slice with this layout, or anything else of which every rank has as much; the result is
  // on the device.
  at::Tensor gather_slice(const at::Tensor& slice) { return gathered(slice, "gather slices"); }

  // ---- its gradient, while it trains ----
  GroupGradient& gradients() { return gradients_; }
  const GroupGradient& gradients() const { return gradients_; }
  // This rank's slice of the reduced gradient; undefined when none has arrived since it was
  // cleared.
  const at::Tensor& gradient() const { return gradients_.slice(); }

 private:
  void enter(GroupState next);
  at::TensorOptions slice_options() const;
  // Makes the parameters views of `flat_`, new where it is to be another one.
  void make_views();
  void set_trainable(bool trainable);
  std::int64_t references() const;
  // Puts this memory under the parameters; null takes it away.
  void attach(void* data);
  // Of a group in 8 bits: from codes and scales to what the parameters view.
  void make_values();
  // Of a group that is multiplied in 8 bits: gives each parameter its scales and transposed codes.
  void attach_codes();
  // Beside codes in place, if backward comes through them.
  void make_room_for_transposed();
  // From codes in flat order to transposed ones, each matrix at its place.
  void transpose(const at::Tensor& codes, const at::Tensor& out) const;
  void give_back_staging();
  void release(std::string_view unit);
  at::Tensor gathered(const at::Tensor& slice, const char* what);

  std::size_t id_;
  const PlannedGroup* plan_;
  const ShardPlan* whole_plan_;
  Context& context_;
  const comm::Mesh& mesh_;
  int shard_rank_;

  at::Tensor slice_;
  at::Tensor transposed_;
  OffloadableSlice masters_;  // in the store, while they are apart from `slice_`
  at::Tensor flat_;           // [padded] over the persistent storage, which may be longer
  at::Tensor flat_scales_, flat_transposed_;  // in it, of a group that is multiplied in 8 bits
  c10::Storage unreadable_;                   // under the parameters while the group is sliced
  std::vector<nn::NodePtr> accumulators_;
  std::int64_t references_at_rest_ = 0;
  GroupState state_ = GroupState::sliced;
  int holds_ = 0;       // how many calls of units need it gathered
  at::Tensor buffer_;   // from the pool, under the storage
  at::Tensor staging_;  // from the pool: codes and scales until the values are made
  SideOp gather_;

  GroupGradient gradients_;
};

}  // namespace floe::shard
