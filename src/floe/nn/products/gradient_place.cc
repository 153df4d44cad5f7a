#include "floe/nn/products/gradient_place.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>
#include <utility>

namespace floe::nn {
namespace {

using torch::autograd::Node;

// In a backward that fills leaves, and neither hands gradients to whoever asked for some nor is to
// be differentiated itself.
bool gradients_arrive() {
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  return (!asked || asked->empty()) && !at::GradMode::is_enabled();
}

// How many gradients each leaf's accumulator waits for in the backward that runs on this thread, as
// far as autograd tells, see Note [Gradients in their place].
const std::unordered_map<const Node*, int>& expected_gradients(const Node& asks) {
  thread_local int counted_for = -1;
  thread_local std::unordered_map<const Node*, int> counts;
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == counted_for) return counts;
  counted_for = task;
  counts.clear();
  const auto count = [](const Node& node) {
    for (const torch::autograd::Edge& edge : node.next_edges())
      if (edge.function && edge.function->num_outputs() == 0) counts[edge.function.get()] += 1;
  };
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (!nodes) return counts;
  for (const Node* node : *nodes) count(*node);
  if (!nodes->contains(const_cast<Node*>(&asks))) count(asks);  // it is the first
  return counts;
}

// What autograd's saved data takes.
struct HeldPlace : torch::CustomClassHolder {
  explicit HeldPlace(GradientPlacePtr what) : place(std::move(what)) {}
  GradientPlacePtr place;
};
constexpr const char* kPlaceKey = "gradient_place";

}  // namespace

bool gets_one_gradient(const at::Tensor& leaf, long held) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
  const auto asks = torch::autograd::get_current_node();
  if (!accumulator || !asks || leaf.grad().defined() ||
      torch::autograd::AnomalyMode::is_enabled() || !asks->post_hooks().empty() ||
      !accumulator->pre_hooks().empty() || !accumulator->tensor_pre_hooks().empty() ||
      !accumulator->post_hooks().empty())
    return false;
  const auto& expected = expected_gradients(*asks);
  const auto found = expected.find(accumulator.get());
  return found != expected.end() && found->second == 1 &&
         accumulator.use_count() == 2 + held;  // ours, and that of the one use
}

at::Tensor GradientPlace::product(const at::Tensor& left, const at::Tensor& right) const {
  at::Tensor place;
  const at::ScalarType dtype = left.scalar_type();
  if (places_ && gradients_arrive()) place = places_->take_place(index_, dtype);
  if (!place.defined()) return left.t().mm(right);
  if (place.scalar_type() == dtype) return at::mm_out(place, left.t(), right);
  at::mm_out(place, left.t(), right, place.scalar_type());
  // See Note [Wide places].
  return place.view({-1}).view(dtype).narrow(0, 0, place.numel()).view(place.sizes());
}

void keep_gradient_place(torch::autograd::AutogradContext& context, const at::Tensor& weight) {
  if (!weight.requires_grad()) return;
  if (GradientPlacePtr place = gradient_place(weight))
    context.saved_data[kPlaceKey] =
        c10::IValue::make_capsule(c10::make_intrusive<HeldPlace>(std::move(place)));
}

at::Tensor weight_gradient(torch::autograd::AutogradContext& context, const at::Tensor& left,
                           const at::Tensor& right) {
  const auto kept = context.saved_data.find(kPlaceKey);
  if (kept == context.saved_data.end()) return left.t().mm(right);
  return c10::static_intrusive_pointer_cast<HeldPlace>(kept->second.toCapsule())
      ->place->product(left, right);
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
