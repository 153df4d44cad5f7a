#include "floe/data/python/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/data/python/str.h"

namespace floe::data {

namespace {

// How Python finds out the encoding of JSON in bytes.

// The text of `bytes` as UTF-8, surrogates allowed. UTF-8 stays in place (without a byte order
// mark); UTF-16 and UTF-32, told by a byte order mark or by where the zeros are, go through
// `storage`. Throws DataError when the bytes are not valid in their encoding.
std::string_view json_text(std::string_view bytes, std::string& storage);

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
    append_utf8(storage, c);
  }
  return storage;
}

}  // namespace

namespace {

// Python gives up at its recursion limit, 1000 frames of which the callers of json.loads
// hold a few.
constexpr int kMaxDepth = 990;
constexpr std::size_t kMostDigits = 4300;

class Parser {
 public:
  Parser(std::string_view text, std::pmr::memory_resource& memory) : text_(text), memory_(memory) {}

  Json document() {
    skip_space();
    Json root = value(0);
    skip_space();
    if (at_ != text_.size()) fail("extra data");
    return root;
  }

 private:
  using Kind = Json::Kind;

  [[noreturn]] void fail(std::string_view what) const {
    throw DataError(str("json: ", what, " at byte ", at_));
  }

  // The next character, or 0 at the end (which stands for itself nowhere in JSON).
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool accept(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }

  template <class T>
  std::span<const T> keep(const std::vector<T>& scratch, std::size_t from) {
    const std::size_t count = scratch.size() - from;
    if (count == 0) return {};
    auto* kept = static_cast<T*>(memory_.allocate(count * sizeof(T), alignof(T)));
    std::uninitialized_copy(scratch.begin() + static_cast<std::ptrdiff_t>(from), scratch.end(),
                            kept);
    return {kept, count};
  }

  Json value(int depth) {
    if (depth > kMaxDepth) fail("too deeply nested");
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    switch (peek()) {
      case '"': return {.kind = Kind::string, .text = string()};
      case '{': return object(depth);
      case '[': return array(depth);
      case 'n':
        if (accept("null")) return {};
        break;
      case 't':
        if (accept("true")) return {.kind = Kind::boolean, .truth = true};
        break;
      case 'f':
        if (accept("false")) return {.kind = Kind::boolean};
        break;
      case 'N':
        if (accept("NaN"))
          return {.kind = Kind::real, .number = std::numeric_limits<double>::quiet_NaN()};
        break;
      case 'I':
        if (accept("Infinity")) return {.kind = Kind::real, .number = kInfinity};
        break;
      case '-':
        if (accept("-Infinity")) return {.kind = Kind::real, .number = -kInfinity};
        return number();
      default: return number();
    }
    fail("expected a value");
  }

  Json array(int depth) {
    ++at_;
    const std::size_t from = items_.size();
    skip_space();
    if (accept("]")) return {.kind = Kind::array};
    for (;;) {
      items_.push_back(value(depth + 1));
      skip_space();
      if (accept("]")) break;
      if (!accept(",")) fail("expected ',' or ']'");
      skip_space();
    }
    const auto kept = keep(items_, from);
    items_.resize(from);
    return {.kind = Kind::array, .items = kept};
  }

  Json object(int depth) {
    ++at_;
    const std::size_t from = members_.size();
    skip_space();
    if (accept("}")) return {.kind = Kind::object};
    for (;;) {
      if (peek() != '"') fail("expected a name in double quotes");
      const std::string_view key = string();
      skip_space();
      if (!accept(":")) fail("expected ':'");
      skip_space();
      Json item = value(depth + 1);
      members_.push_back({key, item});
      skip_space();
      if (accept("}")) break;
      if (!accept(",")) fail("expected ',' or '}'");
      skip_space();
    }
    merge_equal_keys(from);
    const auto kept = keep(members_, from);
    members_.resize(from);
    return {.kind = Kind::object, .members = kept};
  }

  // As in a dict: a key keeps its first place and takes its last value.
  void merge_equal_keys(std::size_t from) {
    std::unordered_map<std::string_view, std::size_t> places;
    std::size_t end = from;
    for (std::size_t i = from; i < members_.size(); ++i) {
      const auto [place, is_new] = places.try_emplace(members_[i].key, end);
      members_[place->second] = members_[i];
      end += is_new ? 1 : 0;
    }
    members_.resize(end);
  }

  bool is_digit(std::size_t at) const {
    return at < text_.size() && text_[at] >= '0' && text_[at] <= '9';
  }

  Json number() {
    const std::size_t start = at_;
    std::size_t end = at_ + (peek() == '-' ? 1 : 0);
    const std::size_t digits = end;
    if (!is_digit(end)) fail("expected a value");
    if (text_[end] == '0')
      ++end;
    else
      while (is_digit(end)) ++end;
    const std::size_t num_digits = end - digits;
    bool whole = true;
    if (end < text_.size() && text_[end] == '.' && is_digit(end + 1)) {
      whole = false;
      for (++end; is_digit(end);) ++end;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const bool sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-');
      if (const std::size_t first = end + (sign ? 2 : 1); is_digit(first)) {
        whole = false;
        for (end = first; is_digit(end);) ++end;
      }
    }
    if (whole && num_digits > kMostDigits) fail("a number of more than 4300 digits");
    at_ = end;
    const std::string_view literal = text_.substr(start, end - start);
    return {.kind = whole ? Kind::integer : Kind::real,
            .number = to_double(literal),
            .text = whole ? literal : std::string_view()};
  }

  static double to_double(std::string_view literal) {
    double value = 0;
    const auto result = std::from_chars(literal.data(), literal.data() + literal.size(), value);
    if (result.ec != std::errc::result_out_of_range) return value;
    // Too large or too small: the place of the first digit that is not zero tells.
    const double sign = literal.starts_with('-') ? -1 : 1;
    const std::size_t e = std::min(literal.find_first_of("eE"), literal.size());
    const std::string_view mantissa = literal.substr(0, e);
    const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
    const std::size_t first = mantissa.find_first_of("123456789");
    if (first == std::string_view::npos) return sign * 0.0;
    double exponent = static_cast<double>(point) - static_cast<double>(first);
    if (e < literal.size()) {
      std::string_view digits = literal.substr(e + 1);
      const bool negative = digits.starts_with('-');
      digits.remove_prefix(digits.find_first_of("0123456789"));
      digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
      double size = digits.size() > 15 ? 1e15 : 0;
      if (digits.size() <= 15)
        for (const char c : digits) size = size * 10 + (c - '0');
      exponent += negative ? -size : size;
    }
    return sign * (exponent > 0 ? std::numeric_limits<double>::infinity() : 0.0);
  }

  // From the opening quote; the content, in place when it has no escape.
  std::string_view string() {
    const std::size_t start = ++at_;
    const char* from = text_.data() + start;
    const auto* quote = static_cast<const char*>(std::memchr(from, '"', text_.size() - start));
    if (!quote) fail("unterminated string");
    const std::string_view plain(from, static_cast<std::size_t>(quote - from));
    if (plain.find('\\') == std::string_view::npos) {
      check_controls(plain);
      at_ = start + plain.size() + 1;
      return plain;
    }
    return string_with_escapes();
  }

  std::string_view string_with_escapes() {
    std::string out;
    for (;;) {
      std::size_t stop = at_;
      while (stop < text_.size() && text_[stop] != '"' && text_[stop] != '\\') ++stop;
      if (stop == text_.size()) fail("unterminated string");
      const std::string_view plain = text_.substr(at_, stop - at_);
      check_controls(plain);
      out += plain;
      at_ = stop + 1;
      if (text_[stop] == '"') break;
      escape(out);
    }
    auto* kept = static_cast<char*>(memory_.allocate(out.size() + 1, 1));
    out.copy(kept, out.size());
    return {kept, out.size()};
  }

  void check_controls(std::string_view plain) const {
    unsigned char least = 0xFF;  // a form that compilers turn into vector code
    for (const char c : plain) least = std::min(least, static_cast<unsigned char>(c));
    if (least < 0x20) fail("a control character in a string");
  }

  void escape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char name = peek();
    if (at_ >= text_.size()) fail("unterminated string");
    ++at_;
    if (name == 'u') {
      char32_t code = hex4();
      if (code >= 0xD800 && code < 0xDC00 && accept("\\u")) {
        const char32_t low = hex4();
        if (low >= 0xDC00 && low < 0xE000)
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        else
          at_ -= 6;  // an escape of its own
      }
      append_utf8(out, code);
    } else {
      const std::size_t place = kNames.find(name);
      if (place == std::string_view::npos) fail("an unknown escape in a string");
      out += kMeanings[place];
    }
  }

  char32_t hex4() {
    unsigned code = 0;
    const char* from = text_.data() + at_;
    if (text_.size() - at_ < 4) fail("a broken \\u escape");
    const auto [end, error] = std::from_chars(from, from + 4, code, 16);
    if (error != std::errc() || end != from + 4) fail("a broken \\u escape");
    at_ += 4;
    return code;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::pmr::memory_resource& memory_;
  std::vector<Json> items_;          // of the arrays that are open
  std::vector<JsonMember> members_;  // of the objects that are open
};

}  // namespace

const Json* Json::find(std::string_view key) const {
  for (const JsonMember& member : members)
    if (member.key == key) return &member.value;
  return nullptr;
}

PythonJson::PythonJson(std::span<const std::byte> bytes) {
  const std::string_view text = json_text(as_text(bytes), decoded_);
  root_ = Parser(text, memory_).document();
}

}  // namespace floe::data
