// The file of a W&B run, run-ID.wandb: a header of seven bytes, then entries in LevelDB's log
// format. An entry is one serialized message wandb_internal.Record.
//
// Blocks of 32 KiB are counted from the file's first byte. An entry is cut into chunks that do not
// cross a block: CRC-32 of type and data (u32), length (u16), type (u8: whole, first, middle, last),
// data. A block's rest too short for a chunk's head is zeros.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace floe::metrics {

// The seven bytes in front.
std::string wandb_file_header();

// The bytes of an entry for a file that has `file_size` bytes so far.
std::string wandb_entry(std::string_view record, std::int64_t file_size);

// Reads entries up to the file's end or the first damage; a file whose writer was killed ends with a
// torn entry.
class WandbFileReader {
 public:
  // Throws DataError when the file cannot be opened or is not a W&B run.
  explicit WandbFileReader(const std::string& path);
  // False at the end: damage() says why when bytes are left.
  bool next(std::string& record);
  const std::string& damage() const { return damage_; }

 private:
  bool read(std::size_t num_bytes, std::string& out);
  bool fail(const std::string& damage);

  std::ifstream file_;
  std::int64_t offset_ = 0;
  std::string damage_;
};

}  // namespace floe::metrics
