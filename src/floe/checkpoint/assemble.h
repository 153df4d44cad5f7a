// From the files of the ranks to a directory of torch.distributed.checkpoint: .metadata, meta.pt and
// floe.json. Needs nothing but the folder, so an emergency's files are put together later.
#pragma once

#include <string>
#include <vector>

#include "floe/checkpoint/manifest.h"
#include "floe/checkpoint/rank_files.h"

namespace floe::checkpoint {

// `about` has what the manifest says of the whole; files and ranks are filled in here. `.metadata` is
// written last. Throws CheckpointError when the ranks' tensors are not whole or do not fit together.
void assemble(const std::string& folder, Manifest about, const std::vector<RankManifest>& ranks);

}  // namespace floe::checkpoint
