// Activation checkpointing: keep the inputs of a forward, run it again in backward.
//
// Note [Recomputation]
// The forward runs without autograd. Its outputs hang on one node that keeps the input tensors, the
// state of the random generators and the autocast settings. In backward the node runs the forward
// once more on detached inputs, with the same random numbers, and differentiates that run; gradients
// of parameters accumulate in it as usual. Autocast's cache of cast weights is off in both runs: a
// weight that was cast without autograd, or in the graph outside, has no gradient inside. While a recomputation is under way on this thread,
// `recomputing()` is true: a unit that is gathered for it stays gathered for the backward that follows.
#pragma once

#include <ATen/core/grad_mode.h>

#include <functional>
#include <memory>
#include <vector>

#include "floe/nn/boundary.h"

namespace floe::nn {

// Runs a forward on the given tensors (same number and order as `inputs`), returns its outputs.
using Rerun = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Puts the recomputation node on `outputs` (what `rerun` gave under no-grad for `inputs`). The random
// state is that of the constructor's time: make it before the first run.
class Checkpoint {
 public:
  explicit Checkpoint(TensorRefs& inputs);
  void attach(TensorRefs& outputs, Rerun rerun);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// While it lives, this thread runs the forward of Note [Recomputation] for the first time.
class FirstRun {
 public:
  FirstRun();
  ~FirstRun();
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;

 private:
  at::AutoGradMode grad_off_{false};
  bool cache_before_;
};

// True while this thread runs a forward again for backward.
bool recomputing();

// `listener` is called when a backward meets a recomputation, before it, still inside that backward.
void add_recompute_listener(const void* owner, std::function<void()> listener);
void remove_recompute_listener(const void* owner);

}  // namespace floe::nn
