// One document of raw MMC4, with its pictures put in.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "floe/data/python/json.h"
#include "floe/data/sample.h"

namespace floe::convert {

// How many of what: "documents", "pictures", and every reason why one was left out.
using ConvertCounts = std::map<std::string, std::int64_t>;
void add_counts(const ConvertCounts& more, ConvertCounts& counts);

struct ConvertedDocument {
  std::string json;  // empty when the line is no document
  ConvertCounts counts;
};

// The line's JSON anew as Python would write it, with "image_base64" in each entry of "image_info"
// whose picture `folder`/IMAGE_NAME can be read: as RGB, encoded as JPEG the way Pillow does by
// default. A picture that is missing or unreadable only leaves that field out. Thread-safe.
ConvertedDocument convert_document(std::span<const std::byte> line, const std::string& folder);

// JSON as Python's json.dumps writes it: ASCII only, ", " and ": " between things, numbers as repr.
void write_python_string(std::string_view text, std::string& out);
void write_python_json(const data::Json& value, std::string& out);

}  // namespace floe::convert
