// Activation checkpointing: keep the inputs of a forward, run it again in backward.
//
// Note [Recomputation]
// The forward runs without autograd. Its outputs hang on one node that keeps the input tensors, the
// state of the random generators and the autocast settings. In backward the node runs the forward
// once more on detached inputs, with the same random numbers, and differentiates that run;
// gradients of parameters accumulate in it as usual. Autocast's cache of cast weights is off in
// both runs: a weight that was cast without autograd, or in the graph outside, has no gradient
// inside. While a recomputation is under way on this thread, `recomputing()` is true: a unit that
// is gathered for it stays gathered for the backward that follows.
// A module may keep more than its inputs, so that less is computed again (Note [Kept products]),
// and what it keeps may wait in host memory (Note [Tensors that leave]). Then what a module keeps
// leaves the device while it and the next one run forward, and comes back while the one after it
// runs backward: two modules' worth is on the device at most.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "floe/nn/boundary.h"

namespace floe::nn {

// Runs a forward on the given tensors (same number and order as `inputs`), returns its outputs.
using Rerun = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Stands for the tensors that a rerun's arguments will have.
const at::Tensor& no_tensor();

// Puts the recomputation node on `outputs` (what `rerun` gave under no-grad for `inputs`). The
// random state is that of the constructor's time: make it before the first run.
class Checkpoint {
 public:
  Checkpoint(TensorRefs& inputs, const KeptActivations& kept);
  void attach(TensorRefs& outputs, Rerun rerun);

 private:
  friend class FirstRun;
  struct State;
  std::shared_ptr<State> state_;
};

// While it lives, this thread runs the forward of Note [Recomputation] for the first time.
class FirstRun {
 public:
  FirstRun(Checkpoint& checkpoint, const BoundarySlot& module);
  ~FirstRun();
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;

 private:
  struct Settings;
  std::unique_ptr<Settings> settings_;  // that are back when it ends
};

// True while this thread runs a forward again for backward.
bool recomputing();

// A promise, on all threads while one lives: forwards draw no random numbers of an accelerator. A
// recomputation repeats the random numbers of the first run, for which it keeps the generator's
// state; while a stream is being recorded that state cannot be asked for, and where nothing is
// dropped out, nobody needs it.
class NothingRandom {
 public:
  NothingRandom();
  ~NothingRandom();
  NothingRandom(const NothingRandom&) = delete;
  NothingRandom& operator=(const NothingRandom&) = delete;
};

// `listener` is called when a backward meets a recomputation, before it, still inside that
// backward.
void add_recompute_listener(const void* owner, std::function<void()> listener);
void remove_recompute_listener(const void* owner);

}  // namespace floe::nn
