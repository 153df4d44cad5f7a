// Runs a training step without a device: the real model, engine and autograd on tensors that have
// shapes and no values. What comes out is all that the step would do and hold.
//
//   const Trace trace = rehearse({model, policy, options, 64}, {batch, input_options});
//
// Note [What a rehearsal follows]
// Gathers, prefetches, releases, reductions and their waits are those that the engine issues in its
// second step, when it knows the order of the units; activations live exactly as long as autograd,
// checkpoints and the engine keep them. Not run are the agreement on the gradients and the update:
// their passes over the slices are added by the simulation. On the CPU a rank's own thread
// computes, copies and waits, and Gloo's threads carry collectives beside it (Note [Direct
// collectives]); what Gloo's group allocates meanwhile is held until the wait.
#pragma once

#include <memory>

#include "floe/batch/packed_batch.h"
#include "floe/models/model_input.h"
#include "floe/plan/rehearsal/trace.h"
#include "floe/shard/options.h"

namespace torch::nn {
class Module;
}

namespace floe::plan {

struct RehearsedModel {
  std::shared_ptr<torch::nn::Module> model;  // deferred; a language model or models::Transformer
  shard::Policy policy;
  shard::ShardOptions options;  // without a world
  int world_size = 1;
  bool on_cpu = false;  // by the code that the CPU's ranks run, over Gloo; else a GPU's
};

struct RehearsedBatch {
  PackedBatch batch;  // on the CPU; of images only the number and size count
  at::ScalarType dtype = at::kBFloat16;
};

// Throws ConfigError for what cannot be rehearsed: slices in host memory, products in 8 bits on the
// CPU.
// The model is deferred again afterwards, as it was.
Trace rehearse(const RehearsedModel& subject, const RehearsedBatch& batch);

}  // namespace floe::plan
