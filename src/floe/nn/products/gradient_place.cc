#include "floe/nn/products/gradient_place.h"

#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/graph_task.h>

namespace floe::nn {
namespace {

// In a backward that fills leaves, and does not hand gradients to whoever asked for some.
bool gradients_arrive() {
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  return !asked || asked->empty();
}

}  // namespace

at::Tensor GradientPlace::product(const at::Tensor& left, const at::Tensor& right) const {
  at::Tensor place;
  if (places_ && gradients_arrive()) place = places_->take_place(index_, left.scalar_type());
  if (!place.defined()) return left.t().mm(right);
  return at::mm_out(place, left.t(), right);
}

void set_gradient_place(const at::Tensor& leaf, GradientPlaces* places, std::size_t index) {
  const GradientPlacePtr before = gradient_place(leaf);
  if (before) before->end();
  if (places)
    leaf.unsafeGetTensorImpl()->set_backend_meta(
        c10::make_intrusive<GradientPlace>(*places, index));
  else if (before)
    leaf.unsafeGetTensorImpl()->set_backend_meta(nullptr);
}

GradientPlacePtr gradient_place(const at::Tensor& leaf) {
  return GradientPlacePtr::unsafe_reclaim_from_nonowning(
      dynamic_cast<GradientPlace*>(leaf.unsafeGetTensorImpl()->get_backend_meta()));
}

}  // namespace floe::nn
