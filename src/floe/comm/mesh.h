// The ranks as a grid: `shard` inside, `replicate` across.
//
//   world 4, shard size 2:    rank 0 1 | 2 3      shard groups {0,1} {2,3}
//                                                 replicate groups {0,2} {1,3}
// full_shard: one shard group of all ranks. no_shard: one replicate group of all ranks.
#pragma once

#include "floe/comm/group.h"

namespace floe::comm {

struct Mesh {
  GroupPtr world;
  GroupPtr shard;      // neighbours that hold the other slices of the same copy
  GroupPtr replicate;  // ranks that hold the same slice of other copies

  int shard_size() const { return shard->size(); }
  int replicate_size() const { return replicate->size(); }
};

}  // namespace floe::comm
