// Small JSON files that notice when one of their bytes is wrong: a line of JSON, then a line with the
// checksum of the first. Strings may have any bytes (names on a file system): what is not UTF-8 is
// written as bytes_to_text has it, and comes back as it was.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "floe/core/error.h"

namespace floe::checkpoint {

// The bytes of such a file.
std::string seal(const nlohmann::json& content);
// Writes it atomically and returns when it is on disk.
void write_sealed(const std::string& path, const nlohmann::json& content);
// Throws CheckpointError that names the file when it is missing or damaged.
nlohmann::json read_sealed(const std::string& path);
nlohmann::json unseal(const std::string& bytes, const std::string& path);

// With every string, and every key, as bytes_to_text has it; and back.
nlohmann::json as_text(const nlohmann::json& content);
nlohmann::json as_bytes(const nlohmann::json& text);

// As the files have it: "0012abcd".
std::string hex(std::uint32_t crc);

// Runs `read` on parsed content; a value that is missing or of another kind becomes a CheckpointError
// that names the file.
template <class F>
auto reading(const std::string& path, F&& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& e) {
    throw CheckpointError(str("'", path, "' does not say what floe writes there (", e.what(), ")"));
  }
}

}  // namespace floe::checkpoint
