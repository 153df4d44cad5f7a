#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "floe/core/error.h"
#include "floe/io/tar/tar.h"

namespace floe {
namespace {

using TarBlock = std::array<std::byte, kTarBlock>;

constexpr std::uint64_t kRecord = 10240;
constexpr std::size_t kNameBytes = 100;
constexpr std::uint64_t kMostUstarSize = std::uint64_t{1} << 33;  // eleven octal digits

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 128; });
}

// With a question mark for every other character.
std::string in_ascii(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 128)
      out += c;
    else if (byte >= 0xc0)  // the first byte of a character in UTF-8
      out += '?';
  }
  return out;
}

// "LENGTH KEY=VALUE\n", where LENGTH counts its own digits.
std::string pax_record(const std::string& key, const std::string& value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest;
  while (rest + std::to_string(length).size() != length)
    length = rest + std::to_string(length).size();
  return str(length, " ", key, "=", value, "\n");
}

}  // namespace

void TarWriter::put(std::span<const std::byte> bytes) {
  sink_(bytes);
  num_bytes_ += bytes.size();
}

void TarWriter::pad(std::uint64_t multiple) {
  static constexpr std::array<std::byte, kRecord> kZeros{};
  put(std::span(kZeros).first((multiple - num_bytes_ % multiple) % multiple));
}

void TarWriter::put_header(const std::string& name, std::uint64_t size, char type) {
  TarBlock block{};
  const auto put_text = [&](std::size_t at, std::string_view text) {
    std::memcpy(&block[at], text.data(), text.size());
  };
  const auto put_octal = [&](std::size_t at, int digits, std::uint64_t value) {
    char text[32];
    std::snprintf(text, sizeof text, "%0*llo", digits, static_cast<unsigned long long>(value));
    put_text(at, text);
  };
  const bool is_file = type == '0';
  put_text(0, in_ascii(name).substr(0, kNameBytes));
  put_octal(100, 7, is_file ? 0444 : 0);
  put_octal(108, 7, 0);
  put_octal(116, 7, 0);
  put_octal(124, 11, size < kMostUstarSize ? size : 0);
  put_octal(136, 11, 0);
  put_text(148, "        ");
  block[156] = static_cast<std::byte>(type);
  put_text(257, std::string_view("ustar\00000", 8));
  if (is_file) {
    put_text(265, "bigdata");
    put_text(297, "bigdata");
  }
  std::uint64_t sum = 0;
  for (const std::byte byte : block) sum += std::to_integer<std::uint64_t>(byte);
  put_octal(148, 6, sum);
  block[154] = std::byte{0};
  put(block);
}

void TarWriter::add(const std::string& name, std::span<const std::byte> data) {
  require(!name.empty() && name.find('\0') == std::string::npos,
          "a member of a tar archive needs a name without zero bytes");
  std::string records;
  if (name.size() > kNameBytes || !is_ascii(name)) records += pax_record("path", name);
  if (data.size() >= kMostUstarSize) records += pax_record("size", std::to_string(data.size()));
  if (!records.empty()) {
    put_header("././@PaxHeader", records.size(), 'x');
    put(std::as_bytes(std::span(records)));
    pad(kTarBlock);
  }
  put_header(name, data.size(), '0');
  put(data);
  pad(kTarBlock);
}

void TarWriter::finish() {
  put(TarBlock{});
  put(TarBlock{});
  pad(kRecord);
}

}  // namespace floe
