// Where the gradient of a weight is wanted.
//
// Note [Gradients in their place]
// An engine collects gradients in flat buffers. Whoever computes the gradient of a weight by a
// product can ask for its place there, let the product write into it and hand that tensor to
// autograd as the gradient: then nothing is allocated and nothing copied. Autograd may do with it
// whatever it does with a gradient. Where it adds another one (a weight that is used twice) the sum
// is a new tensor, which is copied into the place as any other; so a place is given once until its
// gradient has arrived.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>

namespace floe::nn {

class GradientPlaces {
 public:
  virtual ~GradientPlaces() = default;
  // Whether gradients of this dtype are ever taken there.
  virtual bool takes(at::ScalarType dtype) const = 0;
  // Of the shape of parameter `index`, contiguous, to be filled by the backward that is running; or
  // undefined: nothing of this dtype can be taken there now.
  virtual at::Tensor take_place(std::size_t index, at::ScalarType dtype) = 0;
};

// The place of one parameter's gradient, for whoever computes it: a function of autograd keeps this
// from forward to backward, which unlike the parameter itself asks nobody to have its values there.
class GradientPlace final : public c10::BackendMeta {
 public:
  GradientPlace(GradientPlaces& places, std::size_t index) : places_(&places), index_(index) {}

  bool takes(at::ScalarType dtype) const { return places_ && places_->takes(dtype); }
  // leftᵀ · right with left [rows, out] and right [rows, in], in the place or, if it cannot be had,
  // in memory of its own.
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

// From now on `leaf` has its place there; null: nowhere, which must be said before that is gone.
void set_gradient_place(const at::Tensor& leaf, GradientPlaces* places, std::size_t index);
// Null for one that has none.
GradientPlacePtr gradient_place(const at::Tensor& leaf);

}  // namespace floe::nn
