// Passes whose shapes repeat, recorded as CUDA graphs and replayed.
//
//   const auto stream = computing_stream(device);   // before the engine is made
//   ... engine, optimizer ...
//   StepGraphs graphs(model, *engine);
//   const PassLosses losses = graphs.run(input);    // instead of run_pass(model, input)
//
// Note [Step graphs]
// A pass is forward, loss and backward of one batch with its gathers and reductions: everything
// between two agreements that only the device does. The host issues thousands of launches for it,
// always the same ones when shapes repeat (nn::BatchParts). So a shape that has been seen twice is
// recorded the third time, and from then on the device replays it: the new batch is copied over the
// recorded one, one launch starts everything, and the engine is put where a real pass would have
// left it (Note [Repeated passes]). The numbers are those of a pass that runs, bit for bit: the
// same kernels on the same values in the same order.
//
// All graphs draw from one pool of device memory, because none runs beside another and nothing in
// it outlives a pass: parameters, gradients, optimizer state and batches lie outside. The pool is
// as large as the largest recorded pass. Passes that run keep memory of their own.
//
// Natural data seldom repeats a shape, so its batches are rounded up (Note [Rounded batches]);
// those whose very shape comes again are left as they are.
//
// Whether a collective is recorded has to be the same on all ranks that take part in it. So ranks
// that really communicate compare, before each pass, what each of them would do (one small
// all-reduce); where they differ, all of them run the pass.
//
// Validation and everything else beside passes runs as ever. A pass is not replayed while somebody
// watches it (Engine::may_repeat); a change of which parameters train drops all graphs.
#pragma once

#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "floe/models/language_model.h"
#include "floe/shard/engine.h"

namespace floe::train {

// What a pass (forward, loss and backward of one batch) gives: on the device, without history.
struct PassLosses {
  at::Tensor loss;       // what was differentiated
  at::Tensor of_source;  // [sources] sums of token losses
};

// Gradients add to those that there are. `after_forward` may be empty.
PassLosses run_pass(models::LanguageModel& model,
                    const std::shared_ptr<const models::ModelInput>& input,
                    const std::function<void()>& after_forward = {});

// While it lives, this thread computes on a stream of its own: torch's default one cannot be
// recorded, and autograd keeps to the stream on which parameters were made ready.
std::unique_ptr<c10::StreamGuard> computing_stream(c10::Device device);

class StepGraphs {
 public:
  struct Options {
    std::int64_t passes_before = 2;  // of a shape that run before it is recorded
    std::size_t most = 16;   // graphs that are kept; the one that has rested longest goes first
    bool drops_out = false;  // the model draws random numbers
  };
  struct Counts {
    std::int64_t ran = 0, recorded = 0, replayed = 0, dropped = 0;
    std::size_t kept = 0;
    std::int64_t pool_bytes = 0;  // of device memory that the graphs share
  };

  // Throws ConfigError where nothing can be recorded: on the CPU, or with a backend without CUDA.
  static void require_device(const comm::World& world);

  // The current stream must be one of computing_stream. Throws ConfigError for what cannot be
  // recorded: see require_device; offloaded slices or activations; watched operators.
  StepGraphs(models::LanguageModel& model, shard::Engine& engine, const Options& options);
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Whether the batch should be prepared rounded: its own shape is not one that repeats.
  bool should_round(const PackedBatch& batch);

  // As run_pass. Collective where ranks really communicate. `after_forward` is called by a pass
  // that runs, and by one that is replayed when it has been started.
  PassLosses run(const std::shared_ptr<const models::ModelInput>& input,
                 const std::function<void()>& after_forward = {});

  Counts counts() const;
  // In a sentence.
  std::string summary() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace floe::train
