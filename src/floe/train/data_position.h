// Where the data of a restored run goes on.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/checkpoint/checkpointer.h"

namespace floe::train {

struct DataPosition {
  std::vector<nlohmann::json> ranks;  // loader states; empty: the beginning of the data
  std::int64_t batches_behind = 0;    // that are to be read and left out from there
};

// The states of the checkpoint's ranks. A rank that died left none, even where a copy of its slices
// is in the set: then all ranks go back to an older checkpoint of the run, or to the beginning, and
// read on from there to the same place.
DataPosition data_position(const checkpoint::Restored& restored, const std::string& run_folder,
                           std::int64_t batches_per_step);

}  // namespace floe::train
