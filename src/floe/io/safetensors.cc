#include "floe/io/safetensors.h"

#include <array>
#include <bit>
#include <cstring>

#include "floe/core/error.h"

namespace floe {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor files are little-endian");

constexpr std::int64_t kMostHeaderBytes = 100'000'000;  // the limit of the reference reader

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) {
  auto file = std::make_shared<const File>(path);
  require<DataError>(file->size() >= 8, "'", path, "' has ", file->size(),
                     " bytes, too few for the 8-byte header length of a safetensors file");
  std::array<std::byte, 8> prefix;
  file->read_at(0, prefix);
  std::uint64_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);
  require<DataError>(length <= static_cast<std::uint64_t>(kMostHeaderBytes) &&
                         length <= static_cast<std::uint64_t>(file->size() - 8),
                     "'", path, "' is no safetensors file or is cut off: its header would have ",
                     length, " bytes, but ", file->size() - 8, " follow (and at most ",
                     kMostHeaderBytes, " are allowed)");
  std::string json(static_cast<std::size_t>(length), '\0');
  file->read_at(8, std::as_writable_bytes(std::span(json)));
  header_ =
      parse_safetensors_header(json, path, 8 + static_cast<std::int64_t>(length), file->size());
  keep_open(std::move(file));
}

std::vector<std::string> SafetensorsFile::names() const { return names_in(header_.tensors); }

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  return found == header_.tensors.end() ? nullptr : &found->second;
}

}  // namespace floe
