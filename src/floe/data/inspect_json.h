// One inspected sample as a line of JSON.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "floe/data/sample.h"

namespace floe::data {

// shard, key, status (kept | dropped), reason, detail, ids, images, crop_sha256 (of each crop's bytes,
// HWC), label_spans ([first, end) of tokens with a label). Bytes that are not UTF-8 in names become U+FFFD.
std::string json_line(const Outcome& outcome);

// [first, end) of the positions that have a label.
std::vector<std::pair<std::size_t, std::size_t>> label_spans(const Sample& sample);

}  // namespace floe::data
