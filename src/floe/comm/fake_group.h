// One process that acts as rank r of W, for planning, memory tests and measuring one rank of many on
// one device. Collectives copy as many bytes as real ones would deliver, and behave as if every
// other rank held the same data as this one.
#pragma once

#include "floe/comm/group.h"

namespace floe::comm {

GroupPtr make_fake_group(std::string name, int rank, int size);

}  // namespace floe::comm
