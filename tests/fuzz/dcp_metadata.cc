// Any bytes as the .metadata of a distributed checkpoint: refused with a CheckpointError, or chunks
// that tile their tensors and files inside of the directory.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "floe/core/error.h"
#include "floe/io/dcp/dcp.h"

namespace {

void check(std::string_view bytes) {
  const floe::DcpMetadata metadata = floe::parse_dcp_metadata(bytes, "fuzz");
  for (const auto& [name, tensor] : metadata.tensors) {
    std::int64_t numel = 1, covered = 0;
    for (const std::int64_t size : tensor.shape) numel *= size;
    for (const floe::DcpChunk& chunk : tensor.chunks) {
      if (chunk.place.file >= metadata.files.size() || chunk.numel() == 0) std::abort();
      covered += chunk.numel();
      // The first and the last element lie where the tensor has elements.
      const std::int64_t first = place_in_tensor(chunk, tensor.shape, 0);
      const std::int64_t last = place_in_tensor(chunk, tensor.shape, chunk.numel() - 1);
      if (first < 0 || last < first || last >= numel) std::abort();
      if (elements_before(chunk, tensor.shape, first) != 0) std::abort();
      if (elements_before(chunk, tensor.shape, last) != chunk.numel() - 1) std::abort();
    }
    if (covered != numel) std::abort();
  }
  for (const std::string& file : metadata.files) {
    const std::filesystem::path path(file);  // "..x" is the name of a file
    if (path.is_absolute() || std::ranges::count(path, "..") > 0) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check({reinterpret_cast<const char*>(data), size});
  } catch (const floe::CheckpointError&) {
  }
  return 0;
}
