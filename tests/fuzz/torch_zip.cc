// Any bytes as a file of torch.save: refused with a DataError, or every tensor reads, in one piece
// as in two.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "floe/core/error.h"
#include "floe/io/torch_file/torch_file.h"

namespace {

constexpr std::int64_t kMostElements = 1 << 14;  // an expanded tensor may stand for 2^60

std::vector<std::byte> read(const floe::TorchFile& file, const floe::TensorInfo& info,
                            std::int64_t first, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * size_of(info.dtype)));
  file.read(info, first, count, bytes);
  return bytes;
}

void check(const std::string& path) {
  const floe::TorchFile file(path);
  for (const std::string& name : file.names()) {
    const floe::TensorInfo& info = file.get(name);
    const std::int64_t count = std::min(info.numel(), kMostElements);
    const std::int64_t first = info.numel() - count, half = count / 2;
    auto bytes = read(file, info, first, half);
    const auto rest = read(file, info, first + half, count - half);
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    if (bytes != read(file, info, first, count)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int fd = ::memfd_create("fuzz", 0);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    check("/proc/self/fd/" + std::to_string(fd));
  } catch (const floe::DataError&) {
  }
  ::close(fd);
  return 0;
}
