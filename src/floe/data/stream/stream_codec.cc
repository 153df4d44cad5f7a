#include "floe/data/stream/stream_codec.h"

#include <limits>

#include "floe/data/python/base64.h"

namespace floe::data {

std::string encode_numbers(std::span<const std::uint64_t> numbers) {
  Bytes bytes;
  for (std::uint64_t number : numbers) {
    for (; number >= 128; number >>= 7) bytes.push_back(static_cast<std::byte>(number | 128));
    bytes.push_back(static_cast<std::byte>(number));
  }
  return encode_base64(bytes);
}

std::vector<std::uint64_t> decode_numbers(std::string_view text) {
  std::vector<std::uint64_t> numbers;
  std::uint64_t number = 0;
  int shift = 0;
  for (const std::byte byte : decode_base64(text)) {
    require<DataError>(shift < 64, "loader state: a number has more than 64 bits");
    const auto bits = std::to_integer<std::uint64_t>(byte);
    number |= (bits & 127) << shift;
    shift += 7;
    if (bits & 128) continue;
    numbers.push_back(number);
    number = 0;
    shift = 0;
  }
  require<DataError>(shift == 0, "loader state: a list of numbers is cut off");
  return numbers;
}

std::string encode_words(std::span<const std::uint32_t> words) {
  Bytes bytes;
  for (const std::uint32_t word : words)
    for (int shift = 0; shift < 32; shift += 8)
      bytes.push_back(static_cast<std::byte>(word >> shift));
  return encode_base64(bytes);
}

std::vector<std::uint32_t> decode_words(std::string_view text) {
  const Bytes bytes = decode_base64(text);
  require<DataError>(bytes.size() % 4 == 0, "loader state: a list of words is cut off");
  std::vector<std::uint32_t> words(bytes.size() / 4);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    words[i / 4] |= std::to_integer<std::uint32_t>(bytes[i]) << (i % 4 * 8);
  return words;
}

std::uint32_t narrow_u32(std::uint64_t value) {
  require<DataError>(value <= std::numeric_limits<std::uint32_t>::max(), "loader state: ", value,
                     " is too large");
  return static_cast<std::uint32_t>(value);
}

}  // namespace floe::data
