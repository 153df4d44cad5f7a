// The gradient of one group, on its way from autograd to this rank's slice.
//
// Note [Gradients]
// A gradient that autograd has finished is moved into its place in a flat buffer of the reduction's
// dtype at once and forgotten by the parameter; a group of one parameter takes it over as it is.
// When the last parameter of the group has arrived, the buffer is the reduce-scatter's input. At
// most one reduction is under way while the next buffer fills. Where nothing is sliced and dtypes
// agree, the buffer is the gradient itself. GradientState says which of these are held when.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "floe/shard/group/context.h"
#include "floe/shard/states.h"

namespace floe::shard {

class FlatGroup;

// Told by autograd, on the thread that runs backward, that the gradient of a parameter is complete.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  virtual void on_gradient(FlatGroup& group, std::size_t index) = 0;
};

class GroupGradient {
 public:
  GroupGradient(FlatGroup& group, Context& context, const comm::Mesh& mesh);

  GradientState state() const { return state_; }
  // This rank's slice of the reduced gradient; undefined when none has arrived since `clear`.
  const at::Tensor& slice() const { return slice_; }
  // Of the slice, also while its memory is kept for the next one.
  std::int64_t slice_bytes() const;

  // From now on this one hears of every parameter's gradient; null: nobody does.
  void set_listener(GradientListener* listener);

  // A backward begins: no parameter has received a gradient in it.
  void begin_backward();
  // Called when autograd has finished the gradient of parameter `index`. True when it was the last.
  bool accumulate(std::size_t index);
  // Every parameter has received its gradient in this backward.
  bool complete() const { return num_arrived_ == arrived_.size(); }
  // Something arrived since the last reduction.
  bool has_unreduced() const { return state_ == GradientState::collecting; }

  // Collective over the group's mesh: parameters without a gradient count as zero.
  void begin_reduce();
  // Waits for it.
  void finish_reduce();
  bool reducing() const { return reduction_.pending(); }
  // A reduction is under way, and known to be over: to finish it costs nothing.
  bool reduction_is_over() const { return reduction_.done(); }

  void clear();
  // Gives up what a broken pass left.
  void reset() noexcept;
  // The group stops training, or its slices are others': memory that was kept is given up.
  void forget_memory() { kept_memory_ = at::Tensor(); }

  // The slice's memory, which stays in place, holds a gradient in that state already
  // (Engine::repeat_pass): what a pass between clears leaves, so `none`, `reduced` or `local`.
  void restore(GradientState state);

 private:
  void enter(GradientState next);
  // The buffer is the slice: nothing is sliced, dtypes agree.
  bool in_place() const;
  // Memory for a slice: new, or, where gradients stay in place, always the same.
  at::Tensor slice_memory();
  void open_buffer();
  // Makes the gradient itself the buffer, where it has its size, dtype and layout.
  bool take_over(const at::Tensor& gradient);
  void close_buffer();

  FlatGroup& group_;
  Context& context_;
  const comm::Mesh& mesh_;

  GradientState state_ = GradientState::none;
  at::Tensor slice_;           // [slice_numel], storage dtype
  at::Tensor kept_memory_;     // the slice's, where gradients stay in place
  at::Tensor buffer_;          // [padded], reduce dtype
  at::Tensor pooled_;          // the memory of `buffer_`, where it is from the gradient pool
  at::Tensor result_;          // the reduction's
  SideOp reduction_;           // while it is under way
  std::vector<bool> filled_;   // which parameters have a value in `buffer_`
  std::vector<bool> arrived_;  // ... received one in this backward
  std::size_t num_arrived_ = 0;
};

}  // namespace floe::shard
