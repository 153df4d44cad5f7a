// Checkpoints for a training loop of one's own: sharded, written by all ranks, loaded on any number
// of them.
//
//   checkpoint::Checkpoints checkpoints(*engine, {.folder = "run", .optimizers = {&optimizer}});
//   std::int64_t step = 0;
//   if (const auto resumed = checkpoints.resume()) step = resumed->step;
//   while (step < 1000) {
//     ...                                   // forward, backward, agree, optimizer.step
//     step += 1;
//     if (step % 100 == 0) checkpoints.save(step);
//   }
//   checkpoints.wait();
//
// They lie in FOLDER/checkpoints: `step_N`, each a directory that torch.distributed.checkpoint
// reads as well, and `last`, a link to the newest. A checkpoint appears whole or not at all.
//
// Threads: every call comes from the thread that trains. `Collective` calls come from all ranks in
// the same order, between steps; they synchronise over the store of the world, never over its
// collectives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace floe::shard {
class Engine;
}
namespace floe::optim {
class Ema;
class Optimizer;
}  // namespace floe::optim

namespace floe::checkpoint {

// What is not owned outlives the Checkpoints.
struct CheckpointsOptions {
  std::string folder;                           // of the run; made where there is none
  std::vector<optim::Optimizer*> optimizers;    // not owned; at most one for each set of the engine
  optim::Ema* ema = nullptr;                    // not owned; null: none
  std::optional<std::int64_t> keep_newest = 2;  // how many stay on disk; null: all
  // Only what some set trains. What is frozen has then to be there already, from the seed or the
  // source of ShardOptions, when a checkpoint is loaded.
  bool only_trainable = false;
  bool asynchronous = true;  // written behind the training, from copies in host memory
};

// Texts of one's own beside the tensors, in UTF-8.
struct OwnState {
  std::string shared = {};     // the same on all ranks; rank 0's is written
  std::string this_rank = {};  // each rank's: the position in its data, its random numbers
};

// A checkpoint that was loaded: weights, optimizer state and averages are in place, and the set
// that trained then is the active one.
struct Resumed {
  std::int64_t step = 0;
  std::string shared;
  std::vector<std::string> ranks;  // OwnState::this_rank of every rank that saved, however many
  std::string path;
  // Sets whose optimizer starts anew because the checkpoint does not know them; {""}: the only one.
  std::vector<std::string> anew;
  std::string sentence;                  // what was chosen and why
  std::vector<std::string> passed_over;  // a sentence for each one that is damaged or unfinished
};

class Checkpoints {
 public:
  // Collective. Removes what an interrupted save left behind. Throws ConfigError for optimizers of
  // another engine or two of the same set.
  Checkpoints(shard::Engine& engine, CheckpointsOptions options);
  // Waits for a save under way.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Collective, once, before the first step: the newest checkpoint of the folder that is whole, if
  // there is one. World size, strategy and units may differ from those that it was saved with.
  // Every byte is compared with its checksum on all ranks before anything is changed. Throws
  // CheckpointError when there are checkpoints and none can be used.
  std::optional<Resumed> resume();
  // Collective, instead: a checkpoint by its path (step_N, a directory of
  // torch.distributed.checkpoint, a file of weights), which must be there. Once the folder has
  // checkpoints that are not older, these go first: the next start of the same program goes on.
  Resumed resume_from(const std::string& path);

  // Collective: saves what `step` updates have made. Returns when the slices are copied (when they
  // are on disk, unless asynchronous). An error of writing is thrown by the next save() or wait(),
  // on all ranks, as CheckpointError.
  void save(std::int64_t step, const OwnState& own = {});
  // Collective: until the save under way is on disk.
  void wait();
  // Where the last finished save lies; empty before the first.
  std::string last_saved() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace floe::checkpoint
