// Where the gradient of a weight is wanted.
//
// Note [Gradients in their place]
// An engine collects gradients in flat buffers. Whoever computes the gradient of a weight by a
// product can ask for its place there, let the product write into it and hand that tensor to
// autograd as the gradient: then nothing is allocated and nothing copied. The memory belongs to the
// engine, so nobody else may hold on to it, and it must have arrived before anything else writes
// there. Therefore a place is given only where the weight gets this one gradient in the backward
// that runs and nothing is hooked to it: then the next thing that autograd does is to hand it over.
// Anywhere else (a weight that is used twice) the gradient goes the ordinary way and is copied.
// Autograd does not tell of the node that a backward begins with, unless that one asks, nor of
// another backward inside of this one, as that of a checkpointed module. So every use of a weight
// that is alive has to be one that is known: with each the accumulator of the weight has one
// reference more. And a place is given only to what computes on the stream on which gradients are
// taken in: on any other the memory may still be read for what it was used for before.
//
// Note [Wide places]
// On a GPU a product of halves can write its sums in fp32 as they are, for a buffer of that dtype:
// one rounding less, and none of the passes that would widen them. Autograd wants a gradient of the
// weight's own dtype, though, and gets a tensor that lies in the same memory and says no more than
// that the gradient has arrived: its values mean nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>

namespace torch::autograd {
struct AutogradContext;
}

namespace floe::nn {

class GradientPlaces {
 public:
  virtual ~GradientPlaces() = default;
  // Whether gradients of products of this dtype are ever taken there.
  virtual bool takes(at::ScalarType dtype) const = 0;
  // Of the shape of parameter `index`, contiguous, to be filled by the backward that is running,
  // and of the product's dtype or a wider one; or undefined: nothing can be taken there now.
  virtual at::Tensor take_place(std::size_t index, at::ScalarType dtype) = 0;
};

// The place of one parameter's gradient, for whoever computes it: a function of autograd keeps this
// from forward to backward, which unlike the parameter itself asks nobody to have its values there.
class GradientPlace final : public c10::BackendMeta {
 public:
  GradientPlace(GradientPlaces& places, std::size_t index) : places_(&places), index_(index) {}

  bool takes(at::ScalarType dtype) const { return places_ && places_->takes(dtype); }
  // leftᵀ · right with left [rows, out] and right [rows, in], in the place or, if it cannot be had,
  // in memory of its own: what to hand to autograd.
  at::Tensor product(const at::Tensor& left, const at::Tensor& right) const;
  // There is none any more.
  void end() { places_ = nullptr; }

  // The gradient of a copy is wanted nowhere.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>&) const override {
    return {};
  }

 private:
  GradientPlaces* places_;
  std::size_t index_;
};
using GradientPlacePtr = c10::intrusive_ptr<GradientPlace>;

// A function of autograd that computes the gradient of `weight` by a product calls the first in its
// forward and the second in its backward, with rows as GradientPlace::product takes them.
void keep_gradient_place(torch::autograd::AutogradContext& context, const at::Tensor& weight);
at::Tensor weight_gradient(torch::autograd::AutogradContext& context, const at::Tensor& left,
                           const at::Tensor& right);

// Whether `leaf`, which has none yet, gets one gradient in the backward that runs on this thread,
// from the function that asks, and nobody but its accumulator sees it. `held`: so many references
// to the accumulator are the caller's own. False as well while a graph of an earlier forward is
// alive in which the leaf was used.
bool gets_one_gradient(const at::Tensor& leaf, long held);

// From now on `leaf` has its place there; null: nowhere, which must be said before that is gone.
void set_gradient_place(const at::Tensor& leaf, GradientPlaces* places, std::size_t index);
// Null for one that has none.
GradientPlacePtr gradient_place(const at::Tensor& leaf);

}  // namespace floe::nn
