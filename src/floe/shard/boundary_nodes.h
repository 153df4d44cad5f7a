// The two autograd nodes of a unit's call.
//
// Note [Backward without parameter hooks]
// OutputNode sits on a call's outputs and fires before anything of the unit's backward: gather.
// InputNode sits on its inputs and fires when their gradients are complete: release. Both are
// identities. InputNode is made before the forward, so its sequence number is the lowest of the call:
// the engine runs ready nodes with higher numbers first, hence every other node of the call has run
// when it does. No parameter has to require a gradient for any of this.
#pragma once

#include <functional>
#include <memory>

#include "floe/nn/boundary.h"

namespace floe::shard {

// One call of a unit, from its forward to the end of its backward.
class UnitCall {
 public:
  virtual ~UnitCall() = default;
  virtual void before_backward() = 0;
  virtual void after_backward() = 0;
};

// Puts the node on those tensors that require a gradient; false when none does.
bool attach_input_node(nn::TensorRefs& inputs, std::shared_ptr<UnitCall> call);
bool attach_output_node(nn::TensorRefs& outputs, std::shared_ptr<UnitCall> call);

}  // namespace floe::shard
