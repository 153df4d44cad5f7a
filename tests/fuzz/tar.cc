// Any bytes as a shard, plain or compressed: members, then the end or a DataError; never more bytes
// than the stream has, and the same again when it is read again.
#include "floe/io/tar/tar.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "floe/core/error.h"

namespace {

// The sizes of the members, and whether the shard ended well.
std::pair<std::vector<std::size_t>, bool> read(const std::string& path, bool plain,
                                               std::size_t most) {
  std::vector<std::size_t> sizes;
  std::uint64_t last = 0;
  try {
    floe::TarReader reader(path);
    for (floe::TarEntry entry; reader.next(entry); sizes.push_back(entry.data.size())) {
      if (plain && (entry.data.size() > most || reader.position() + 512 > most)) std::abort();
      if (!sizes.empty() && reader.position() <= last) std::abort();
      last = reader.position();
    }
    return {sizes, true};
  } catch (const floe::DataError&) {
    return {sizes, false};
  }
}

// Headers with wrong checksums end an archive at once, so every input is also tried with right
// ones.
void mend_checksums(std::vector<std::uint8_t>& archive) {
  for (std::size_t at = 0; at + 512 <= archive.size(); at += 512) {
    if (std::memcmp(&archive[at + 257], "ustar", 5) != 0) continue;
    std::memset(&archive[at + 148], ' ', 8);
    unsigned sum = 0;
    for (std::size_t i = 0; i < 512; ++i) sum += archive[at + i];
    std::snprintf(reinterpret_cast<char*>(&archive[at + 148]), 8, "%06o", sum);
  }
}

void try_archive(const std::vector<std::uint8_t>& archive) {
  const int fd = ::memfd_create("fuzz", 0);
  const auto size = static_cast<ssize_t>(archive.size());
  if (fd < 0 || ::write(fd, archive.data(), archive.size()) != size) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const std::uint8_t first = archive.empty() ? 0 : archive[0];
  const bool may_be_compressed =
      first == 0x1f || first == 'B' || first == 0xfd || first == 0x28 || first == 0x04;
  const auto once = read(path, !may_be_compressed, archive.size());
  if (once != read(path, !may_be_compressed, archive.size())) std::abort();
  ::close(fd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> archive(data, data + size);
  try_archive(archive);
  mend_checksums(archive);
  try_archive(archive);
  return 0;
}
