#include "floe/shard/pass/unit.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <utility>

#include "floe/core/log.h"
#include "floe/nn/activations/checkpoint.h"
#include "floe/nn/autograd_node.h"
#include "floe/shard/pass/pass_runner.h"

namespace floe::shard {
namespace {

using torch::autograd::variable_list;

// What the nodes of a call tell it. Shared by the unit and the graph: when the graph is discarded
// without a backward, what the call kept is dropped with it.
class CallEvents {
 public:
  virtual ~CallEvents() = default;
  virtual void before_backward() = 0;
  virtual void after_backward() = 0;
};

enum class Side { input, output };

class IdentityNode final : public torch::autograd::Node {
 public:
  IdentityNode(Side side, std::shared_ptr<CallEvents> call) : side_(side), call_(std::move(call)) {}

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
  std::shared_ptr<CallEvents> call_;
};

// Puts the node on those tensors that require a gradient; false when none does.
bool attach_node(Side side, nn::TensorRefs& tensors, std::shared_ptr<CallEvents> call) {
  torch::autograd::edge_list edges;
  nn::TensorRefs chosen;
  for (at::Tensor* tensor : tensors)
    if (tensor->requires_grad()) {
      edges.push_back(torch::autograd::impl::gradient_edge(*tensor));
      chosen.push_back(tensor);
    }
  if (chosen.empty()) return false;
  auto node = nn::make_node<IdentityNode>(side, std::move(call));
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

// One call of a unit, from its forward to the end of its backward.
class Unit::Call final : public CallEvents {
 public:
  explicit Call(Unit& unit) : unit_(&unit) {}
  ~Call() override {
    try {
      close();
    } catch (const std::exception& e) {
      log::debug("a graph was discarded after a failure: ", e.what());
    }
  }

  bool has_input_node = false;

  void expect_backward(GroupMask needed) { needed_ = needed; }
  void keep(GroupMask groups) { held_ = groups; }

  void before_backward() override {
    if (!unit_) return;
    unit_->runner_.enter_backward();
    // What is held from forward needs no second hold.
    const GroupMask held_twice = needed_ & held_;
    held_ = needed_ | held_;
    in_backward_ = true;
    unit_->runner_.enter_unit(*unit_, Step::Kind::backward, needed_);
    unit_->drop(held_twice);
  }
  void after_backward() override { close(); }

  void close() {
    if (!unit_) return;
    if (!held_.empty()) unit_->drop(std::exchange(held_, {}));
    if (std::exchange(in_backward_, false))
      unit_->runner_.context().emit(Event::Kind::end_backward, unit_->label_, "", 0);
  }
  void forget_unit() { unit_ = nullptr; }

 private:
  Unit* unit_;
  GroupMask needed_;  // in backward
  GroupMask held_;    // now
  bool in_backward_ = false;
};

Unit::Unit(std::size_t id, PassRunner& runner, const PlannedUnit& plan,
           std::vector<FlatGroup*> groups)
    : id_(id), runner_(runner), plan_(plan), groups_(std::move(groups)), label_(plan.label()) {
  const std::string prefix = plan.name.empty() ? "" : plan.name + ".";
  const auto& units = runner.plan().units;
  has_inner_units_ = std::any_of(units.begin(), units.end(), [&](const PlannedUnit& other) {
    return &other != &plan && other.name.starts_with(prefix);
  });
}

Unit::~Unit() {
  // Graphs may outlive the engine; they must not reach back.
  for (const auto& weak : waiting_)
    if (const auto call = weak.lock()) call->forget_unit();
  for (const auto& call : running_) call->forget_unit();
}

GroupMask Unit::saved_groups() const {
  GroupMask saved;
  for (std::size_t i = 0; i < groups_.size(); ++i)
    if (groups_[i]->is_saved()) saved.add(i);
  return saved;
}

void Unit::gather(GroupMask groups) {
  for (std::size_t i = 0; i < groups_.size(); ++i)
    if (groups.has(i)) {
      groups_[i]->hold();
      groups_[i]->begin_gather(label_, /*ahead=*/false);
    }
  for (std::size_t i = 0; i < groups_.size(); ++i)
    if (groups.has(i)) groups_[i]->finish_gather(label_);
}

void Unit::drop(GroupMask groups) {
  for (std::size_t i = 0; i < groups_.size(); ++i)
    if (groups.has(i)) groups_[i]->drop(label_);
}

void Unit::cast(nn::TensorRefs& inputs) const {
  const auto& mixed = runner_.mixed_precision();
  if (!mixed.param || !mixed.cast_inputs) return;
  for (at::Tensor* input : inputs)
    if (at::isFloatingType(input->scalar_type()) && input->scalar_type() != *mixed.param)
      *input = input->to(*mixed.param);
}

void Unit::before_forward(nn::TensorRefs& inputs) {
  runner_.enter_unit(*this, Step::Kind::forward, all_groups());
  cast(inputs);
  auto call = std::make_shared<Call>(*this);
  if (at::GradMode::is_enabled() && attach_node(Side::input, inputs, call))
    call->has_input_node = true;
  running_.push_back(std::move(call));
}

void Unit::after_forward(nn::TensorRefs& outputs) {
  const std::shared_ptr<Call> call = std::move(running_.back());
  running_.pop_back();

  GroupMask kept;
  if (at::GradMode::is_enabled() && attach_node(Side::output, outputs, call)) {
    const GroupMask needed = plan_.recomputes ? all_groups() : saved_groups();
    call->expect_backward(needed);
    std::erase_if(waiting_, [](const auto& weak) { return weak.expired(); });
    waiting_.push_back(call);
    const bool backward_is_next = nn::recomputing() || runner_.next_is_backward_of(*this);
    for (std::size_t i = 0; i < groups_.size(); ++i)
      if (needed.has(i) && !groups_[i]->plan().in_place() &&
          (backward_is_next || groups_[i]->plan().keep_until_backward())) {
        kept.add(i);
        runner_.context().emit(Event::Kind::keep, label_, groups_[i]->name(),
                               groups_[i]->plan().gathered_bytes());
      }
    call->keep(kept);
  }
  for (std::size_t i = 0; i < groups_.size(); ++i)
    if (!kept.has(i)) groups_[i]->drop(label_, runner_.used_again(*groups_[i]));
  runner_.exit_unit(*this);
}

void Unit::on_group_complete() {
  if (has_inner_units_) return;
  const bool all = std::all_of(groups_.begin(), groups_.end(), [](const FlatGroup* group) {
    return !group->plan().active || group->gradients().complete();
  });
  if (!all) return;
  for (const auto& weak : waiting_)
    if (const auto call = weak.lock(); call && !call->has_input_node) call->close();
}

void Unit::close_calls() {
  for (const auto& weak : waiting_)
    if (const auto call = weak.lock()) call->close();
  std::erase_if(waiting_, [](const auto& weak) { return weak.expired(); });
}

bool Unit::waits() const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [](const auto& weak) { return !weak.expired(); });
}

void Unit::abandon_calls() {
  for (const auto& call : running_) call->forget_unit();
  for (const auto& weak : waiting_)
    if (const auto call = weak.lock()) call->forget_unit();
  running_.clear();
  waiting_.clear();
}

}  // namespace floe::shard
