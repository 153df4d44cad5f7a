// Emergency sets: what ranks wrote on their way out, each alone.
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

#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/save/rank_files.h"

namespace floe::checkpoint {

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
