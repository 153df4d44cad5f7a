// Is every byte of a checkpoint what was written?
#pragma once

#include <string>
#include <vector>

#include "floe/checkpoint/folder/manifest.h"

namespace floe::checkpoint {

// All ranges of a checkpoint of floe, and that they are all of its files. Throws CheckpointError
// for files that are missing, too long or too short, or do not fit together.
std::vector<CheckedRange> ranges_of(const std::string& checkpoint, const Manifest& manifest);

// Reads this part of the bytes and compares; together the parts are everything. Throws
// CheckpointError that names the file, the tensor and the place of the first difference.
void verify(const std::string& checkpoint, const std::vector<CheckedRange>& ranges, int part = 0,
            int parts = 1);

}  // namespace floe::checkpoint
