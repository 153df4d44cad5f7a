// Files of text: lines of JSON, or tars.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "floe/data/stream/stream_reader.h"

namespace floe::data {

// Whether the name has `.jsonl` or `.ndjson` in it.
bool is_json_lines(const std::string& where);

// A file of JSON lines, compressed or not: every line that is not blank is a member `<line>.jsonl`.
// Anything else is a tar. Pipes, and `stop`, as in TarReader.
// Throws DataError when there is no such file. Its next() throws DataError that names the line when
// the file is damaged or a line is absurdly long; every line before that has been given.
std::unique_ptr<MemberSource> open_text(const std::string& where, const std::atomic<bool>* stop);

}  // namespace floe::data
