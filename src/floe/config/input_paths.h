// Where relative paths of a configuration lead.
//
// Note [Relative paths]
// One rule for everything that is read (models, weights, tokenizers, shards, batches, a checkpoint
// to begin from): a relative path is looked for beside the file that names it, else in the working
// directory; one of the command line in the working directory alone. What was found becomes
// absolute, so that the configuration that a run keeps means the same files from any folder. What
// was not found stays as it was written; not_found() says where it was looked for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "floe/schema/value.h"

namespace floe::config {

// Whether there is something at this place, which may be a pattern.
using IsThere = std::function<bool(const std::string& place)>;
bool exists(const std::string& place);

// The file that a value was written in; empty for the command line and defaults.
std::string file_of(const Origin& origin);

// The folders, absolute, in which a relative path of that file is looked for, in order.
std::vector<std::string> input_folders(const std::string& file);
// The absolute path of what `path`, written in `file`, names; as written when nothing is there.
std::string find_input(const std::string& path, const std::string& file,
                       const IsThere& is_there = exists);
// Where a relative path was looked for:
// "neither beside a.yaml (/x/lm) nor in the working directory (/y/lm)".
std::string not_found(const std::string& path, const std::string& file);

}  // namespace floe::config
