// Saving and restoring a run: the one thing that a trainer uses of this module.
//
//   Checkpointer checkpoints({.config = config.checkpoint, .run_folder = run, .engine = &engine,
//                             .optimizers = {{"", &optimizer}}, .ema = ema});
//   if (auto restored = checkpoints.resume(config.run.resume)) continue_from(*restored);
//   while (...) {
//     train_a_step();
//     { auto updating = checkpoints.updating(); optimizer.step(lr); }
//     if (due) checkpoints.save(step, shared_state, state_of_this_rank, metrics);
//   }
//   checkpoints.wait();
//
// A run's checkpoints lie in RUN/checkpoints: `step_N` (or files checkpoint_N.pt), `last` (a link
// to the newest), `on_exception` (an emergency set, until the next good save).
//
// Threads: every call comes from the thread that trains. `Collective` calls come from all ranks in
// the same order; they synchronise over the store of the world, never over its collectives.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "floe/checkpoint/checkpoint_config.h"
#include "floe/checkpoint/folder/rank_states.h"
#include "floe/checkpoint/sets.h"
#include "floe/io/tensors/tensor_source.h"
#include "floe/optim/ema.h"
#include "floe/optim/optimizer.h"
#include "floe/shard/engine.h"

namespace floe::checkpoint {

// Weights that a checkpoint refers to instead of holding them.
struct FrozenBase {
  std::string path;
  std::string digest;  // see weights_digest
};

// A digest of names, types, shapes and some bytes of every tensor: cheap for any size, and
// different for every other model and for most other training states of the same model.
std::string weights_digest(const TensorSource& weights);

// Elements [first, first + count) of a parameter, at the end of the runs before it.
struct FileRun {
  std::string parameter;
  std::int64_t first = 0, count = 0;
};
// A tensor of a file in another system's layout, and the parameters it is made of.
struct FileTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<FileRun> runs;        // one after the other; together they are the tensor
  std::vector<std::string> copies;  // further names of the same tensor
};
// How a model's parameters are called in files of other systems. Empty: as in the model.
struct ForeignNames {
  // Of every parameter that checkpoint_N.pt may have; it has those of which it holds a parameter.
  std::vector<FileTensor> tensors;
  // Parameters that checkpoints of that system have even where they are frozen and in the base.
  std::set<std::string> always;
  // A source under the file's names as one under the model's. Null: the names are the model's.
  std::function<std::shared_ptr<const TensorSource>(std::shared_ptr<const TensorSource>)> to_model;
};

// Note [What a checkpoint holds]
// With content: trainable a checkpoint holds everything that cannot be read again from the frozen
// base: what some set trains, `kept`, and what the checkpoint that the run was resumed from held.
// So what trained once stays, in all later checkpoints, also of runs in which it is frozen. A
// manifest lists it (Manifest::kept), with content: full as well. Frozen parts are held as they are
// stored, which is mixed_precision.param.
struct CheckpointerOptions {
  CheckpointConfig config;
  std::string run_folder;
  shard::Engine* engine = nullptr;  // required; it, the optimizers and the average outlive this
  std::vector<SetOptimizer> optimizers;  // of every set; names as in Note [Names of optimizers]
  optim::Ema* ema = nullptr;
  std::vector<FrozenBase> bases;
  std::set<std::string> kept;  // parameters that are not in the bases, whether they train or not
  ForeignNames foreign;
  // No parameter has a value yet (model.skip_init): resume() throws ConfigError unless it finds a
  // checkpoint that has all of them.
  bool nothing_initialised = false;
};

// A checkpoint that was loaded: the weights, the optimizer's and the average's state are in place.
struct Restored {
  std::int64_t step = 0;
  nlohmann::json shared;  // as it was passed to save(); what a foreign file says, else
  RankStates ranks;       // of the ranks of the run that saved; empty for foreign files
  std::string path;
  bool emergency = false;
  bool own = true;            // written by floe; else from torch.distributed.checkpoint or a file
  bool of_this_run = false;   // it lies among this run's checkpoints; else the run begins from it
  bool has_optimizer = true;  // false: an optimizer starts anew
  // Sets whose optimizer starts anew because the checkpoint does not know them; {""}: the only one.
  std::vector<std::string> anew;
  std::string sentence;                  // what was chosen and why
  std::vector<std::string> passed_over;  // a sentence for each one that was not taken
};

// A finished save.
struct Saved {
  std::string path;    // empty: there is none
  double time_s = 0;   // when it was whole, a unix time
  double seconds = 0;  // that it took, on this rank, from the call to the last word of the others
};

class Checkpointer {
 public:
  // Collective. Removes what an interrupted save of an earlier run left behind.
  explicit Checkpointer(CheckpointerOptions options);
  // Waits for a save under way.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Collective, once, before the first step. "auto": the valid checkpoint of this run with the
  // highest step, if there is one; "never": nothing; else the path of a checkpoint (step_N, a
  // directory of PyTorch, a file) or of a run folder. Everything is validated on all ranks before
  // anything is changed. Throws CheckpointError when a path cannot be used, or no checkpoint of
  // this run can although there are some. The set that trained when it was saved is the active one
  // of the engine afterwards, where this run has it too. A checkpoint of other sets gives its
  // weights; optimizers that it does not know start anew, and the log says so.
  std::optional<Restored> resume(const std::string& mode);

  // Begins to make the memory that asynchronous saves copy to, beside the training: after a first
  // update, when all state is there, and again when there is more. Not needed, but the first save
  // then holds the training no longer than the others. See Note [Memory of the first save].
  void prepare();

  // Collective. Saves after `step` updates. Asynchronous ones return when the slices are copied; an
  // error of writing is then thrown (or logged, with on_failure: continue) by the next save() or
  // wait(), on all ranks. Returns false when the save failed and training is to go on.
  bool save(std::int64_t step, const nlohmann::json& shared, const nlohmann::json& rank_state,
            const std::map<std::string, double>& metrics = {});
  // Collective: until the save under way is on disk.
  bool wait();

  // How long a save that begins now would take, by the last one and by what is under way. 0: nobody
  // knows.
  double expected_seconds() const;
  // Collective, instead of save(), where there is no time for one: every rank writes its slices at
  // once and by itself, before it waits for anybody or for the save under way. If the process is
  // killed after that, the next start puts them together. Returns when that has been done here:
  // then they are the checkpoint `on_exception`. Throws CheckpointError on all ranks.
  void save_apart(std::int64_t step, const nlohmann::json& shared,
                  const nlohmann::json& rank_state);

  // No collective, bounded time, never throws: writes this rank's slices for the step they belong
  // to, unless an update (or resume()) was under way. For the way out after an exception.
  // `rank_state` is that of the beginning of the step that failed.
  void emergency(std::int64_t step, const nlohmann::json& shared,
                 const nlohmann::json& rank_state) noexcept;

  // While one lives, slices are neither of the last step nor of the next: around an optimizer's
  // step with the average's, and around Engine::activate, which moves state, masters and averages
  // one after the other. An exception that leaves the scope leaves them so, and no emergency set is
  // written.
  class Updating {
   public:
    explicit Updating(Checkpointer& owner);
    ~Updating();
    Updating(const Updating&) = delete;
    Updating& operator=(const Updating&) = delete;

   private:
    Checkpointer& owner_;
    int exceptions_;
  };
  Updating updating() { return Updating(*this); }

  // Seconds for which saves held the training thread, in all and in the last save.
  double blocking_seconds() const;
  double last_blocking_seconds() const;
  // Of the memory that saves copy to, with what is being made; never waits.
  std::int64_t host_bytes() const;
  // The last one of this start, also while the next is under way.
  Saved last_save() const;
  // Where it lies; empty before the first.
  std::string last_saved() const { return last_save().path; }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace floe::checkpoint
