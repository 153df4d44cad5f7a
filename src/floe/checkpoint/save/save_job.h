// One save, from slices in host memory to a checkpoint with its final name. All ranks run it, on
// any thread.
//
// Note [Commit]
// Rank 0 makes a temporary folder; every rank writes its files there and syncs them; when all have
// said so, rank 0 adds .metadata and what else belongs to the whole, syncs, and renames the folder.
// Until that rename nothing but a folder that the next start removes has changed; after it the
// checkpoint is whole. `last` is a link that is replaced by a rename, and older checkpoints go
// after that. A problem on any rank becomes the same CheckpointError on all.
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

// Collective. Returns the path of the checkpoint; throws CheckpointError on all ranks.
std::string run_save(const SaveJob& job, StoreExchange& ranks);

// From the files of the ranks to a directory of torch.distributed.checkpoint: .metadata, meta.pt
// and floe.json. Needs nothing but the folder, so an emergency's files are put together later.
// `about` has what the manifest says of the whole; files and ranks are filled in here. `.metadata`
// is written last. Throws CheckpointError when the ranks' tensors are not whole or do not fit
// together.
void assemble(const std::string& folder, Manifest about, const std::vector<RankManifest>& ranks);

}  // namespace floe::checkpoint
