// The samples of one shard, in order.
#pragma once

#include <functional>
#include <string>

#include "floe/data/sample.h"
#include "floe/data/stream/stream_reader.h"

namespace floe::starter {

// False: that is enough.
using VisitSample = std::function<bool(const data::RawSample& raw)>;

// Why the shard could not be read to its end; empty: it could, or that was enough.
std::string walk_shard(const std::string& shard, const data::OpenShard& open,
                       const VisitSample& visit);

}  // namespace floe::starter
