#include "floe/data/python/base64.h"

#include <algorithm>
#include <array>

#include "floe/core/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace floe::data {
namespace {

constexpr std::uint8_t kNotInAlphabet = 255;

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::uint8_t, 256> make_values() {
  std::array<std::uint8_t, 256> values{};
  values.fill(kNotInAlphabet);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i)
    values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  return values;
}
constexpr auto kValues = make_values();

// Reading and writing positions; `quad` counts the characters of the group of four that is open.
struct Decoder {
  const char* in;
  const char* end;
  std::byte* out;
  int quad = 0, pads = 0;
  std::uint8_t left = 0;  // bits of the open group that are not written yet
  bool complete = false;  // padding ended the data

  void put(unsigned bits) { *out++ = static_cast<std::byte>(bits); }

  void take(char c) {
    if (c == '=') {
      if (quad >= 2 && quad + ++pads >= 4) complete = true;
      return;
    }
    const unsigned value = kValues[static_cast<unsigned char>(c)];
    if (value == kNotInAlphabet) return;
    pads = 0;
    switch (quad) {
      case 0: left = static_cast<std::uint8_t>(value); break;
      case 1:
        put(left << 2 | value >> 4);
        left = value & 15;
        break;
      case 2:
        put(left << 4 | value >> 2);
        left = value & 3;
        break;
      default: put(left << 6 | value); break;
    }
    quad = (quad + 1) & 3;
  }
};

#if defined(__x86_64__)
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

#define FLOE_AVX2 __attribute__((target("avx2"), always_inline)) inline

// All ones where first <= x <= last, for characters below 127.
FLOE_AVX2 __m256i between(__m256i x, char first, char last) {
  return _mm256_and_si256(_mm256_cmpgt_epi8(x, _mm256_set1_epi8(static_cast<char>(first - 1))),
                          _mm256_cmpgt_epi8(_mm256_set1_epi8(static_cast<char>(last + 1)), x));
}

FLOE_AVX2 __m256i shift(__m256i where, int by) {
  return _mm256_and_si256(where, _mm256_set1_epi8(static_cast<char>(by)));
}

#undef FLOE_AVX2

// Whole blocks of 32 characters, as long as all are in the alphabet. Writes 32 bytes per block, of
// which 24 count. (After W. Muła, D. Lemire, "Faster base64 encoding and decoding using AVX2
// instructions", 2018.)
__attribute__((target("avx2"))) void decode_blocks(Decoder& decoder) {
  // In each half: the three bytes of every 32-bit number, highest first.
  const __m256i bytes_of_group =
      _mm256_setr_epi8(2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1, -1, 2, 1, 0, 6, 5, 4, 10,
                       9, 8, 14, 13, 12, -1, -1, -1, -1);
  const __m256i halves_together = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7);
  while (decoder.end - decoder.in >= 32) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(decoder.in));
    const __m256i upper = between(x, 'A', 'Z'), lower = between(x, 'a', 'z');
    const __m256i digit = between(x, '0', '9');
    const __m256i plus = _mm256_cmpeq_epi8(x, _mm256_set1_epi8('+'));
    const __m256i slash = _mm256_cmpeq_epi8(x, _mm256_set1_epi8('/'));
    const __m256i known = _mm256_or_si256(_mm256_or_si256(upper, lower),
                                          _mm256_or_si256(digit, _mm256_or_si256(plus, slash)));
    if (_mm256_movemask_epi8(known) != -1) return;
    const __m256i shifts = _mm256_or_si256(
        _mm256_or_si256(shift(upper, -'A'), shift(lower, 26 - 'a')),
        _mm256_or_si256(shift(digit, 52 - '0'),
                        _mm256_or_si256(shift(plus, 62 - '+'), shift(slash, 63 - '/'))));
    const __m256i values = _mm256_add_epi8(x, shifts);
    const __m256i pairs = _mm256_maddubs_epi16(values, _mm256_set1_epi32(0x01400140));
    const __m256i groups = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00011000));
    const __m256i packed =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(groups, bytes_of_group), halves_together);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(decoder.out), packed);
    decoder.in += 32;
    decoder.out += 24;
  }
}
#else
bool has_avx2() { return false; }
void decode_blocks(Decoder&) {}
#endif

bool is_ascii(std::string_view text) {
  unsigned char any = 0;
  for (const char c : text) any |= static_cast<unsigned char>(c);
  return any < 128;
}

}  // namespace

Bytes decode_base64(std::string_view text) {
  require<DataError>(is_ascii(text), "base64: the text is not ASCII");
  constexpr std::size_t kSlack = 32;  // blocks are stored whole
  Bytes bytes(text.size() / 4 * 3 + 3 + kSlack);
  Decoder decoder{text.data(), text.data() + text.size(), bytes.data()};
  const bool fast = has_avx2();
  while (decoder.in < decoder.end && !decoder.complete) {
    if (fast && decoder.quad == 0) decode_blocks(decoder);
    // A block with other characters, or the rest: one by one until a block can begin again.
    while (decoder.in < decoder.end && !decoder.complete) {
      decoder.take(*decoder.in++);
      if (decoder.quad == 0) break;
    }
  }
  require<DataError>(decoder.complete || decoder.quad != 1,
                     "base64: the number of characters is 1 more than a multiple of 4");
  require<DataError>(decoder.complete || decoder.quad == 0, "base64: incorrect padding");
  bytes.resize(static_cast<std::size_t>(decoder.out - bytes.data()));
  return bytes;
}

std::string encode_base64(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (k < count ? std::to_integer<std::uint32_t>(bytes[i + k]) : 0);
    for (std::size_t k = 0; k < 4; ++k)
      text += k <= count ? kAlphabet[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

}  // namespace floe::data
