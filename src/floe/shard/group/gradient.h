// The gradient of one group, on its way from autograd to this rank's slice.
//
// Note [Gradients]
// A gradient that autograd has finished is moved into its place in a flat buffer of the reduction's
// dtype at once and forgotten by the parameter; a group of one parameter takes it over as it is. A
// product's is there already, where its dtype is the buffer's or can be widened to it by the
// product itself: see Note [Gradients in their place]. When the last parameter of the group has
// arrived, the buffer is the reduce-scatter's input. At most one buffer is being reduced while the
// next one fills. Where nothing is sliced and dtypes agree, the buffer is the gradient itself.
// GradientState says which of these are held when.
//
// A slice in host memory is copied there behind backward. Where nothing is sliced the copy
// reads the buffer itself: it then counts as being reduced, and what fills it next stands
// behind the copy.
//
// Note [Sums over copies]
// Where ranks hold copies of a slice, the reduce-scatter is followed by an all-reduce between
// them, as a rule over a slower network. It needs only the result, so the buffer goes back to the
// pool when the first half is over, and the second goes on, with those of other groups, to the end
// of backward. On an accelerator it has a stream of its own, so that no gather stands behind it. On
// the CPU it is issued when the first half is seen to be over, which no two ranks need do at the
// same time: it is the only kind of collective in its process group, and ranks wait for it, as for
// everything else, at the same places.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "floe/nn/products/gradient_place.h"
#include "floe/shard/group/context.h"
#include "floe/shard/states.h"

namespace floe::shard {

class FlatGroup;

// Told by autograd, on the thread that runs backward.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  // A gradient of the group is about to be written into its buffer, which may have to be opened.
  virtual void before_gradient(FlatGroup& group) = 0;
  // The gradient of a parameter is complete.
  virtual void on_gradient(FlatGroup& group, std::size_t index) = 0;
};

class GroupGradient final : public nn::GradientPlaces {
 public:
  GroupGradient(FlatGroup& group, Context& context, const comm::Mesh& mesh);

  GradientState state() const { return state_; }
  // This rank's slice of the reduced gradient; undefined when none has arrived since `clear`. In
  // host memory it is complete when this returns.
  const at::Tensor& slice() const {
    land();
    return slice_;
  }
  // Of the slice, also while its memory is kept for the next one.
  std::int64_t slice_bytes() const;

  // From now on this one hears of every parameter's gradient; null: nobody does.
  void set_listener(GradientListener* listener);

  // A backward begins: no parameter has received a gradient in it.
  void begin_backward();
  // Called when autograd has finished the gradient of parameter `index`. True when it was the last.
  bool accumulate(std::size_t index);
  // See Note [Gradients in their place].
  bool takes(at::ScalarType dtype) const override;
  at::Tensor take_place(std::size_t index, at::ScalarType dtype) override;
  // Every parameter has received its gradient in this backward.
  bool complete() const { return num_arrived_ == parts_.size(); }
  // Something arrived since the last reduction.
  bool has_unreduced() const { return state_ == GradientState::collecting; }
  // Something is not summed over all ranks that it is to be summed over.
  bool owes_ranks() const;

  // Collective over the ranks that slice the group and, with `over_copies`, over those that hold
  // copies of its slices: the last pass of an update. Parameters without a gradient count as zero.
  void begin_reduce(bool over_copies);
  // Waits until the buffer is no longer needed; see Note [Sums over copies].
  void finish_scatter();
  // Waits for all of it.
  void finish_reduce();
  bool reducing() const { return state_ == GradientState::reducing; }
  // A reduction is under way that still needs the buffer; where the buffer is the slice it has
  // no other use.
  bool holds_buffer() const { return reducing() && buffer_.defined() && !buffer_is_slice(); }
  // It does no longer: finish_scatter costs nothing.
  bool buffer_is_free() const;

  void clear();
  // Gives up what a broken pass left.
  void reset() noexcept;
  // The group stops training, or its slices are others': memory that was kept is given up.
  void forget_memory() { kept_memory_ = at::Tensor(); }

  // The slice's memory, which stays in place, holds a gradient in that state already
  // (Engine::repeat_pass): what a pass between clears leaves, so `none`, `reduced`, `partial` or
  // `local`.
  void restore(GradientState state);

 private:
  // A parameter's part of the buffer.
  struct Part {
    bool filled = false;   // it has a value
    bool given = false;    // a product was given this place, and its gradient has not arrived since
    bool arrived = false;  // a gradient has, in this backward
  };
  // One that is under way.
  struct Reduction {
    at::Tensor result;
    SideOp scatter, average;   // its halves
    bool average_due = false;  // the second half is to be issued when the first is over
    bool adds_slice = false;   // ... with what the slice has from earlier passes added
    bool takes_place = false;  // the result has all that the slice had
  };

  void enter(GradientState next);
  // The buffer is the slice: nothing is sliced, dtypes agree.
  bool in_place() const;
  // Memory for a slice: new, or, where gradients stay in place, always the same.
  at::Tensor slice_memory();
  void open_buffer();
  at::Tensor place_of(std::size_t index) const;
  // A contiguous gradient of this dtype can be the buffer as it is.
  bool takes_over(at::ScalarType dtype) const;
  // Makes it the buffer, where it can.
  bool take_over(const at::Tensor& gradient);
  void close_buffer();
  bool buffer_is_slice() const {
    return buffer_.defined() && slice_.defined() && buffer_.is_alias_of(slice_);
  }
  bool slice_in_host() const;
  void begin_average();
  void finish_average();
  void wait_for(SideOp& op);
  // Puts the reduction's result into the slice.
  void end_reduce();
  void take_result();
  // Nothing of the reduction needs the buffer any more, but for a copy that what fills it next
  // waits for.
  void let_go_of_buffer();
  // Waits for a copy into host memory that is under way.
  void land() const;
  void forget_slice();

  FlatGroup& group_;
  Context& context_;
  const comm::Mesh& mesh_;

  GradientListener* listener_ = nullptr;
  GradientState state_ = GradientState::none;
  at::Tensor slice_;        // [slice_numel], storage dtype
  at::Tensor kept_memory_;  // the slice's, where gradients stay in place
  at::Tensor buffer_;       // [padded], reduce dtype
  at::Tensor pooled_;       // the memory of `buffer_`, where it is from the gradient pool
  Reduction reduction_;
  bool slice_partial_ = false;  // the slice has, or gets, sums that leave copies out
  mutable SideOp flight_;       // of a copy into host memory: of the slice, or of ...
  mutable at::Tensor landing_;  // ... what is to be added to it
  bool buffer_leaves_ = false;  // it copies from `pooled_`
  std::vector<Part> parts_;     // of `buffer_`, by parameter
  std::size_t num_arrived_ = 0;
};

}  // namespace floe::shard
