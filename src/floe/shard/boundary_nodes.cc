#include "floe/shard/boundary_nodes.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

namespace floe::shard {
namespace {

using torch::autograd::variable_list;

enum class Side { input, output };

class IdentityNode final : public torch::autograd::Node {
 public:
  IdentityNode(Side side, std::shared_ptr<UnitCall> call) : side_(side), call_(std::move(call)) {}

  std::string name() const override {
    return side_ == Side::input ? "floe::UnitInput" : "floe::UnitOutput";
  }

  variable_list apply(variable_list&& gradients) override {
    if (side_ == Side::input)
      call_->after_backward();
    else
      call_->before_backward();
    return std::move(gradients);
  }

 private:
  Side side_;
  std::shared_ptr<UnitCall> call_;
};

bool attach(Side side, nn::TensorRefs& tensors, std::shared_ptr<UnitCall> call) {
  torch::autograd::edge_list edges;
  nn::TensorRefs chosen;
  for (at::Tensor* tensor : tensors)
    if (tensor->requires_grad()) {
      edges.push_back(torch::autograd::impl::gradient_edge(*tensor));
      chosen.push_back(tensor);
    }
  if (chosen.empty()) return false;
  auto node = std::make_shared<IdentityNode>(side, std::move(call));
  node->set_next_edges(std::move(edges));
  for (at::Tensor* tensor : chosen) {
    // An alias of the data with a history of its own; in-place operations on it stay allowed.
    at::Tensor alias = tensor->detach();
    torch::autograd::set_history(alias, node);
    *tensor = std::move(alias);
  }
  return true;
}

}  // namespace

bool attach_input_node(nn::TensorRefs& inputs, std::shared_ptr<UnitCall> call) {
  return attach(Side::input, inputs, std::move(call));
}

bool attach_output_node(nn::TensorRefs& outputs, std::shared_ptr<UnitCall> call) {
  return attach(Side::output, outputs, std::move(call));
}

}  // namespace floe::shard
