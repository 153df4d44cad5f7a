#pragma once

#include "floe/data/sample.h"

namespace floe::data {

// The content of a gzip file of one or more members, as Python's gzip reads it. Throws DataError when it
// is cut off, damaged, followed by other bytes than zeros, or larger than `most_bytes`.
Bytes gunzip(std::span<const std::byte> file, std::size_t most_bytes = std::size_t{1} << 30);

}  // namespace floe::data
