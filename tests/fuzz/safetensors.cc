// Any bytes as a safetensors file: refused with a DataError, or every tensor reads in full.
#include "floe/io/safetensors/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "floe/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A file in memory: the target is the whole reader, not only its header parser.
  const int fd = ::memfd_create("fuzz", 0);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    const floe::SafetensorsFile file("/proc/self/fd/" + std::to_string(fd));
    std::uint64_t sum = 0;
    for (const std::string& name : file.names()) {
      const floe::TensorInfo& info = file.get(name);
      std::vector<std::byte> bytes(static_cast<std::size_t>(info.bytes()));
      file.read(info, 0, info.numel(), bytes);
      sum += bytes.size();
    }
    if (sum != file.bytes_read() || sum > size) std::abort();
  } catch (const floe::DataError&) {
  }
  ::close(fd);
  return 0;
}
