// A file that appears whole or not at all: bytes go to a temporary name beside it; commit() puts
// them on disk and renames.
//
//   AtomicFile file("out/model.safetensors");
//   file.write_at(0, bytes);
//   file.commit();
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace floe {

class AtomicFile {
 public:
  // Creates the temporary file in the folder of `path`, which must exist.
  explicit AtomicFile(std::string path);
  // Without a commit the temporary file is removed and `path` stays as it was.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::string& path() const { return path_; }
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  // Waits until the bytes are on disk, renames the file to `path` (replacing what was there), and
  // waits until the rename is on disk. Nothing may be written afterwards.
  void commit();

 private:
  std::string path_, temporary_;
  int fd_ = -1;
};

// Writes a whole small file that way.
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace floe
