// One header of a tar archive: 512 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace floe {

constexpr std::size_t kTarBlock = 512;
using TarBlock = std::array<std::byte, kTarBlock>;

struct TarHeader {
  // What kind of member follows; `other` has data that nobody here wants, `bare` has none.
  enum class Kind { file, sparse, long_name, long_link, pax, pax_global, bare, other };
  Kind kind = Kind::other;
  std::string name;
  std::uint64_t size = 0;
};

bool is_zero(const TarBlock& block);
// Nothing when the block is not a header: the checksum is wrong or a number is not one.
std::optional<TarHeader> parse_tar_header(const TarBlock& block);

// The fields of a pax header that matter here.
struct PaxFields {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size;
  bool sparse = false;
};
// Adds the records "LENGTH KEY=VALUE\n" to what is known; false when one has no length.
bool parse_pax(std::span<const std::byte> records, PaxFields& fields);

// Text up to the first zero byte.
std::string tar_text(std::span<const std::byte> bytes);

// Where the bytes of a shard come from: a file or a command's output, decompressed.

class TarStream {
 public:
  virtual ~TarStream() = default;
  // Fills `out` as far as it can, at least one byte; 0 at the end of the stream. Throws DataError
  // when the stream is damaged or its command failed, after all bytes before that were given.
  virtual std::size_t read(std::span<std::byte> out) = 0;
  // Reads what is left where that shows whether the stream was whole: the exit status of a command,
  // the checksum of compressed data.
  virtual void finish() {}
};

// `where` is a path or "pipe:COMMAND"; gzip, bzip2, xz, zstd and lz4 are told by their content.
std::unique_ptr<TarStream> open_tar_stream(const std::string& where);

}  // namespace floe
