// Raw MMC4 (zipped JSON lines and a folder of pictures) to tar shards, document by document as
// OpenFlamingo's script writes them, except that keys are made from the input (its are random), so
// that the same input gives the same bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "floe/convert/document.h"

namespace floe::convert {

struct ConvertOptions {
  std::vector<std::string> zips;  // number i of the list has its pictures in images/i
  std::string images, out;
  std::int64_t files_per_shard = 1000;  // a new shard after so many zips
  std::int64_t documents_per_shard = 100000;
  std::int64_t bytes_per_shard = 3'000'000'000;
  int num_threads = 1;  // does not change the result
};

struct ConvertProgress {
  std::int64_t num_zips = 0, zips_done = 0;
  std::int64_t shards_done = 0;
  ConvertCounts counts;
  std::string finished_shard;  // not empty: this call is about it
};

// Writes OUT/%09d.tar, each of which appears when it is whole. Calls `report` after every document
// and shard, from the calling thread. When `stop` becomes true it throws; called again with the
// same options it goes on behind the last finished shard, and what it writes is the same as in one
// run. Throws ConfigError for missing input and for an output folder of something else.
ConvertCounts convert_mmc4(const ConvertOptions& options,
                           const std::function<void(const ConvertProgress&)>& report,
                           const std::atomic<bool>& stop);

}  // namespace floe::convert
