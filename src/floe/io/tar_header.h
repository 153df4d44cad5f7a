// One header of a tar archive: 512 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

}  // namespace floe
