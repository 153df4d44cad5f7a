// First values of a group's slice: from files, from the counter-based generator, or from a foreign
// module that has them already. A rank touches only the elements it owns.
#pragma once

#include "floe/io/tensors/tensor_source.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/group/shared_reads.h"
#include "floe/shard/options.h"

namespace floe::shard {

// Every defect of the source at once: shapes that differ, by name, with what was expected and
// found. Throws DataError.
void check_source(const ShardPlan& plan, const ShardOptions& options);

// Collective over the ranks that hold copies of the group's slice, since they read its files
// together, and as FlatGroup::values_changed is.
void fill_group(FlatGroup& group, const ShardOptions& options);

// Of a group that has values: reads again what the source has. Collective over the ranks that hold
// copies of its slice.
void read_group(FlatGroup& group, const TensorSource& source, SharedReads& reads);

}  // namespace floe::shard
