// Files: read by position, written so that they appear whole or not at all, and their checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "floe/core/error.h"

namespace floe {

// This process or machine lacks something (descriptors, memory). It says nothing about what was to
// be read: whoever passes over what is damaged must not pass over that.
class ResourceError : public Error {
 public:
  explicit ResourceError(const std::string& message) : Error(message) {}
};

// A file opened for reading, by position: no cursor, so any number of threads may read at once.
class File {
 public:
  // Opens a regular file; throws DataError that names the path when there is none or it is no file,
  // and ResourceError when this process has no descriptor left for it.
  explicit File(std::string path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  // The size when the file was opened.
  std::int64_t size() const { return size_; }
  // Fills all of `out` from the bytes at `offset`; throws DataError when the file ends before that.
  // Thread-safe.
  void read_at(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int fd_ = -1;
  std::int64_t size_ = 0;
};

// What this thread has read through File so far: for those who count what a load costs.
struct FileCounts {
  std::int64_t opened = 0, bytes = 0;
};
FileCounts file_counts();

// The whole file as text; throws DataError when it is larger than `most_bytes`.
std::string read_text(const std::string& path, std::int64_t most_bytes);

// Throws ResourceError where `error` (of errno) is a lack of descriptors, memory or processes.
void require_resources(int error, const std::string& what);

// Throws Error "cannot WHAT 'PATH': " with what errno says.
[[noreturn]] void throw_errno(const char* what, const std::string& path);

// Whether there is something; false as well where nobody may look.
bool path_exists(const std::string& path);

// What lies in a folder, by name; nothing where there is none of that name. Throws Error where it
// cannot be read: that is no empty folder.
std::vector<std::string> file_names_in(const std::string& folder);

// What a chain of links leads to, whether that exists or not; the path itself where it is no link.
std::string behind_links(const std::string& path);

// Note [What is replaced]
// Where a path is a link, what it leads to is written and the link stays. A folder, device, pipe or
// socket is never replaced, whatever the command was told: that is a ConfigError, and it stays.

// A file that appears whole or not at all: bytes go to a temporary name beside it; commit() puts
// them on disk and renames. See Note [What is replaced].
//
//   AtomicFile file("out/model.safetensors");
//   file.write_at(0, bytes);
//   file.commit();
class AtomicFile {
 public:
  // Creates the temporary file in the folder of `path` (of what that leads to), which must exist.
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
  std::string path_, target_, temporary_;  // as it was given, behind links, beside that
  int fd_ = -1;
};

// Writes a whole small file that way.
void write_file_atomically(const std::string& path, std::string_view text);

// Returns when what was renamed or made in the folder is on disk. Throws Error.
void sync_folder(const std::string& path);

// A folder that appears whole or not at all: files go into a temporary one beside it, and commit()
// renames that. It may replace a folder or a file; else see Note [What is replaced].
//
//   AtomicFolder folder("out", AtomicFolder::Existing::refuse);
//   write_file_atomically(folder.path() + "/config.json", text);
//   folder.commit();
class AtomicFolder {
 public:
  enum class Existing { refuse, replace };

  // Creates the temporary folder beside `target`, and the folders above it. Throws ConfigError when
  // there is something of this name and it is not to be replaced.
  AtomicFolder(std::string target, Existing existing);
  // Without a commit the temporary folder is removed and `target` stays as it was.
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  // Of the temporary folder.
  const std::string& path() const { return temporary_; }
  // Renames it to the target; what was there is removed afterwards. The files must be on disk
  // already.
  void commit();

 private:
  std::string target_, temporary_;
  bool committed_ = false;
};

// CRC-32 as zip archives have it, at the speed of memory: of `bytes`, or of what `before` is the
// checksum of followed by `bytes`.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);
std::uint32_t crc32(std::string_view text, std::uint32_t before = 0);
// Of the bytes [first, first + count) of a file. Throws DataError.
std::uint32_t crc32(const File& file, std::int64_t first, std::int64_t count);
// Of two parts one after the other, from the checksums of both and the length of the second.
std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::int64_t second_bytes);

}  // namespace floe
