// Whether ranks have a folder in common.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "floe/comm/world.h"

namespace floe::comm {

// What is wrong with it on a rank: either it cannot write there, or it does not see what another
// one has written.
struct FolderProblem {
  int error = 0;    // errno of writing; 0: it can
  int unseen = -1;  // the rank whose file it does not see
};

// Collective. Every rank writes a file into the folder, rank 0 looks for those of all and the
// others for that of rank 0; afterwards they are gone. A network file system may show what others
// have made some time later: that long they wait. Throws CommError when a rank does not come.
std::optional<FolderProblem> find_folder_problem(World& world, const std::string& folder,
                                                 std::chrono::milliseconds patience);

}  // namespace floe::comm
