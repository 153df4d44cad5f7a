// floe's own words about a checkpoint, beside what other systems read: floe.json in a directory,
// NAME.floe.json beside a file. It is what makes a checkpoint floe's: a run continues exactly, and
// every byte is checked.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "floe/checkpoint/checkpoint_config.h"
#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/folder/rank_states.h"
#include "floe/core/error.h"

namespace floe::checkpoint {

// Note [Sealed files]
// Small JSON files that notice when one of their bytes is wrong: a line of JSON, then a line with
// the checksum of the first. Strings may have any bytes (names on a file system): what is not UTF-8
// is written as bytes_to_text has it, and comes back as it was.

// The bytes of a sealed file.
std::string seal(const nlohmann::json& content);
// Writes it atomically and returns when it is on disk.
void write_sealed(const std::string& path, const nlohmann::json& content);
// Throws CheckpointError that names the file when it is missing or damaged.
nlohmann::json read_sealed(const std::string& path);
std::string read_sealed_bytes(const std::string& path);
nlohmann::json unseal(const std::string& bytes, const std::string& path);

// With every string, and every key, as bytes_to_text has it; and back.
nlohmann::json as_text(const nlohmann::json& content);
nlohmann::json as_bytes(const nlohmann::json& text);

// Runs `read` on parsed content; a value that is missing or of another kind becomes a
// CheckpointError that names the file.
template <class F>
auto reading(const std::string& path, F&& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& e) {
    throw CheckpointError(str("'", path, "' does not say what floe writes there (", e.what(), ")"));
  }
}

// Bytes [offset, offset + length) of a file with their checksum; `what` is for messages.
struct CheckedRange {
  std::string file;
  std::int64_t offset = 0, length = 0;
  std::uint32_t crc = 0;
  std::string what;
};

// What a checkpoint says about its parameters (Note [What a checkpoint holds]).
struct Holdings {
  Content content = Content::trainable;
  std::vector<FrozenBase> bases;
  // Those that are not in the bases, and of these the ones that some set trained. Null: the
  // checkpoint does not say, because an older floe wrote it.
  std::optional<std::set<std::string>> kept, trained;
  // Those that trained before and do not any more: they have no state and no averages.
  std::set<std::string> frozen;
};
nlohmann::json to_json(const Holdings& holdings);
// Throws nlohmann::json::exception or CheckpointError (naming the file) for anything else.
Holdings holdings_from_json(const nlohmann::json& content, const std::string& path);

struct Manifest : Holdings {
  std::int64_t step = 0;
  int world_size = 1;
  Layout layout = Layout::sharded;
  bool emergency = false;
  std::string model;           // model_digest
  std::vector<SavedSet> sets;  // empty: one without a name
  // Layout trainable: the names of the tensors that each set's optimizer state counts.
  std::map<std::string, std::vector<std::string>> numbered;
  std::map<std::string, double> metrics;
  nlohmann::json shared;
  RankStates ranks;  // what they saved for themselves
  // Everything but the data files of a directory, whose ranges are in the files of the ranks.
  std::vector<CheckedRange> ranges;
  std::map<std::string, std::int64_t> file_bytes;
};

constexpr const char* kManifestFile = "floe.json";

// Where the manifest of a checkpoint, a directory or a file, lies.
std::string manifest_path(const std::string& checkpoint);
void write_manifest(const std::string& path, const Manifest& manifest);
// Throws CheckpointError.
Manifest read_manifest(const std::string& path);

// The checksums of a whole file, which has these bytes: a few ranges of a large one, so that many
// ranks can share in reading it.
std::vector<CheckedRange> checked_ranges(const std::string& file, std::string_view bytes);

}  // namespace floe::checkpoint
