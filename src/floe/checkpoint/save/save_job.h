// Saves, from slices in host memory to a checkpoint with its final name: in order, by all ranks
// together, or in an emergency, by each alone.
//
// Note [Commit]
// Rank 0 makes a temporary folder; every rank writes its files there and syncs them; when all have
// said so, rank 0 adds .metadata and what else belongs to the whole, syncs, and renames the folder.
// Until that rename nothing but a folder that the next start removes has changed; after it the
// checkpoint is whole. `last` is a link that is replaced by a rename, and older checkpoints go
// after that. A problem on any rank becomes the same CheckpointError on all.
//
// Note [Emergency sets]
// A rank that leaves writes its slices and the step they belong to into a folder that names this
// start of the program. It waits for nobody. When the files of the ranks that are there make up
// every tensor (where several ranks hold the same slice, any of them will do), all are of one step
// and the same set of parameters trains on all, they become the checkpoint `on_exception`: the rank
// that comes last does it if all have come, else the next start looks at the folder, and passes it
// over if something is missing.
#pragma once

#include <string>
#include <vector>

#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/save/rank_files.h"
#include "floe/checkpoint/store_exchange.h"

namespace floe::checkpoint {

// How a set's optimizer lists its parameters.
struct OptimizerGroups {
  std::string set;
  std::vector<optim::ParameterGroup> groups;
};

struct SaveJob {
  CheckpointConfig config;
  std::string folder;  // RUN/checkpoints
  Manifest about;
  RankHeader header;
  std::vector<StateTensor> tensors;         // in host memory
  std::vector<StateObject> objects;         // of rank 0
  std::vector<FileTensor> file_tensors;     // layout trainable
  std::vector<OptimizerGroups> optimizers;  // layout full and trainable
};

// Collective, on any thread. Returns the path of the checkpoint; throws CheckpointError on all
// ranks.
std::string run_save(const SaveJob& job, StoreExchange& ranks);

// ---- the way out ----

// Writes this rank's files. Throws Error.
void write_emergency(const std::string& folder, const RankHeader& header,
                     const std::vector<StateTensor>& tensors,
                     const std::vector<StateObject>& objects);

// After write_emergency: makes `on_exception` of the set if this rank is the one that completed it;
// true when it did. Throws Error when the ranks' files do not fit together.
bool complete_emergency(const std::string& folder, const RankHeader& header, const Manifest& about);

// Makes `on_exception` of the newest set that is whole. Returns a sentence for each set that is
// not. `about` has the content and the bases that this run would write. Removes nothing.
std::vector<std::string> gather_emergencies(const std::string& folder, const Manifest& about);

}  // namespace floe::checkpoint
