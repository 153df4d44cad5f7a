// Where an engine meets a module: what happens around its forward.
//
// Note [Boundaries]
// A module that can be a unit carries a BoundarySlot. `nn::call` looks into the slot on every call:
// empty, it runs forward and nothing else. The sharding engine puts a Boundary there; then the call
// is before_forward → forward → after_forward. Both may replace the tensors they are shown (to cast
// them, or to put autograd nodes on them), never their number or order.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace floe::nn {

// The tensors among a call's arguments or results, in order; undefined ones are left out.
using TensorRefs = c10::SmallVector<at::Tensor*, 8>;

class Boundary {
 public:
  virtual ~Boundary() = default;
  virtual void before_forward(TensorRefs& inputs) = 0;
  virtual void after_forward(TensorRefs& outputs) = 0;
};

// What stays of a checkpointed module from its forward to its backward, besides its inputs, and where.
struct KeptActivations {
  bool products = false;  // results of matrix products and attention: what is recomputed is cheap
  bool in_host = false;   // what stays waits in host memory, pinned beside an accelerator
  std::int64_t in_host_from = 1 << 20;  // bytes; smaller tensors wait where they are
};

struct BoundarySlot {
  Boundary* boundary = nullptr;  // not owned; the engine that sets it also clears it
  bool checkpointed = false;     // recompute the forward in backward instead of storing it
  KeptActivations kept;          // ... when it is checkpointed
  bool trains = true;            // some parameter inside may require a gradient
};

}  // namespace floe::nn
