#include "floe/data/json_encoding.h"

#include "floe/core/error.h"
#include "floe/data/unicode.h"
#include "floe/token/utf8.h"

namespace floe::data {
namespace {

struct Encoding {
  std::size_t unit = 1;  // bytes
  bool big_endian = false;
  std::size_t mark = 0;  // bytes of the byte order mark
};

Encoding detect(std::string_view b) {
  using namespace std::string_view_literals;
  if (b.starts_with("\x00\x00\xFE\xFF"sv)) return {4, true, 4};
  if (b.starts_with("\xFF\xFE\x00\x00"sv)) return {4, false, 4};
  if (b.starts_with("\xFE\xFF"sv)) return {2, true, 2};
  if (b.starts_with("\xFF\xFE"sv)) return {2, false, 2};
  if (b.starts_with("\xEF\xBB\xBF"sv)) return {1, false, 3};
  if (b.size() >= 4) {
    if (!b[0]) return {b[1] ? std::size_t{2} : std::size_t{4}, true, 0};
    if (!b[1]) return {b[2] || b[3] ? std::size_t{2} : std::size_t{4}, false, 0};
  } else if (b.size() == 2) {
    if (!b[0]) return {2, true, 0};
    if (!b[1]) return {2, false, 0};
  }
  return {};
}

class Units {
 public:
  Units(std::string_view bytes, const Encoding& encoding) : bytes_(bytes), encoding_(encoding) {}

  std::size_t size() const { return bytes_.size() / encoding_.unit; }
  char32_t operator[](std::size_t i) const {
    char32_t value = 0;
    for (std::size_t k = 0; k < encoding_.unit; ++k) {
      const std::size_t place = encoding_.big_endian ? k : encoding_.unit - 1 - k;
      value = value << 8 | static_cast<unsigned char>(bytes_[i * encoding_.unit + place]);
    }
    return value;
  }

 private:
  std::string_view bytes_;
  Encoding encoding_;
};

bool is_high(char32_t c) { return c >= 0xD800 && c < 0xDC00; }
bool is_low(char32_t c) { return c >= 0xDC00 && c < 0xE000; }

}  // namespace

std::string_view json_text(std::string_view bytes, std::string& storage) {
  const Encoding encoding = detect(bytes);
  bytes.remove_prefix(encoding.mark);
  if (encoding.unit == 1) {
    require<DataError>(is_utf8(bytes) || is_utf8_with_surrogates(bytes),
                       "json: the text is not UTF-8");
    return bytes;
  }
  require<DataError>(bytes.size() % encoding.unit == 0, "json: the text ends inside a character");
  const Units units(bytes, encoding);
  storage.clear();
  for (std::size_t i = 0; i < units.size(); ++i) {
    char32_t c = units[i];
    if (encoding.unit == 2 && is_high(c) && i + 1 < units.size() && is_low(units[i + 1]))
      c = 0x10000 + ((c - 0xD800) << 10) + (units[++i] - 0xDC00);
    require<DataError>(c <= 0x10FFFF, "json: the text has a character beyond Unicode");
    token::append_utf8(storage, c);
  }
  return storage;
}

}  // namespace floe::data
