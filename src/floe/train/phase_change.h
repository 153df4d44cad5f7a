// The moment at which another set of parameters begins to train.
#pragma once

#include <cstdint>
#include <string>

namespace floe::train {

struct PhaseChange {
  std::int64_t step = 0;  // updates that are done
  std::string from, to;   // names of phases
  double seconds = 0;     // of the host; on a GPU copies may go on behind it
};

}  // namespace floe::train
