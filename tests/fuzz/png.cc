#include <zlib.h>

#include "tests/fuzz/picture.h"

namespace {

// Chunks with wrong checksums are refused at once, so every input is also tried with right ones.
void mend_checksums(std::vector<std::uint8_t>& file) {
  for (std::size_t at = 8; at + 12 <= file.size();) {
    std::uint32_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) length = length << 8 | file[at + i];
    if (length > file.size() - at - 12) return;
    const auto checksum = static_cast<std::uint32_t>(crc32_z(0, &file[at + 4], length + 4));
    for (std::size_t i = 0; i < 4; ++i)
      file[at + 8 + length + i] = static_cast<std::uint8_t>(checksum >> (24 - 8 * i));
    at += 12 + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view kMagic = "\x89PNG\r\n\x1a\n";
  floe::fuzz::decode_picture(kMagic, data, size);
  std::vector<std::uint8_t> mended(data, data + size);
  mend_checksums(mended);
  return floe::fuzz::decode_picture(kMagic, mended.data(), mended.size());
}
