// The vectorised decoder against one that takes a character at a time; and back again.
#include "floe/data/python/base64.h"

#include <cstdint>
#include <cstdlib>
#include <optional>

#include "floe/core/error.h"

using floe::data::Bytes;

namespace {

// Python's rules, word by word: nullopt where it raises.
std::optional<Bytes> plain_decode(std::string_view text) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 128) return std::nullopt;
  Bytes out;
  std::size_t in_group = 0, pads = 0;
  std::uint32_t bits = 0;
  for (const char c : text) {
    if (c == '=') {
      if (in_group >= 2 && in_group + ++pads >= 4) return out;
      continue;
    }
    const std::size_t value = kAlphabet.find(c);
    if (value == std::string_view::npos) continue;
    pads = 0;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    if (in_group > 0) out.push_back(static_cast<std::byte>(bits >> (6 - 2 * in_group)));
    in_group = (in_group + 1) % 4;
  }
  return in_group == 0 ? std::optional(out) : std::nullopt;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::optional<Bytes> fast;
  try {
    fast = floe::data::decode_base64(text);
  } catch (const floe::DataError&) {
  }
  if (fast != plain_decode(text)) std::abort();
  const auto bytes = std::as_bytes(std::span(text));
  if (floe::data::decode_base64(floe::data::encode_base64(bytes)) !=
      Bytes(bytes.begin(), bytes.end()))
    std::abort();
  return 0;
}
