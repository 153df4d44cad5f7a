#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"
#include "floe/token/regex/regex.h"
#include "floe/token/unicode/unicode.h"

namespace floe::token {
namespace {

using Ranges = std::vector<std::pair<char32_t, char32_t>>;
constexpr char32_t kLastChar = 0x10ffff;

Ranges joined(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges result;
  for (const auto& range : ranges) {
    if (!result.empty() && range.first <= result.back().second + 1)
      result.back().second = std::max(result.back().second, range.second);
    else
      result.push_back(range);
  }
  return result;
}

Ranges without(const Ranges& ranges) {
  Ranges result;
  char32_t next = 0;
  for (const auto& [first, last] : joined(ranges)) {
    if (first > next) result.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastChar) result.emplace_back(next, kLastChar);
  return result;
}

// Oniguruma's \w: Rust's without the joiners, with Latin-1's superscripts and fractions.
Ranges word_ranges() {
  Ranges ranges = without(CharClasses::table().ranges(kWord));
  ranges.insert(ranges.end(), {{0x200c, 0x200d}});
  ranges = without(ranges);
  ranges.insert(ranges.end(), {{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}});
  return joined(ranges);
}

std::string char_text(char32_t c) {
  char text[16];
  std::snprintf(text, sizeof text, "\\x{%x}", static_cast<unsigned>(c));
  return text;
}

std::string class_text(const Ranges& ranges) {
  if (ranges.empty()) return "(?!)";
  std::string text = "[";
  for (const auto& [first, last] : ranges) {
    text += char_text(first);
    if (last > first) text += "-" + char_text(last);
  }
  return text + "]";
}

class Reader {
 public:
  Reader(const std::string& expression, const std::string& where)
      : expression_(expression), where_(where) {}

  std::string read() {
    alternatives();
    if (at_ < expression_.size()) refuse("an unmatched ')'");
    return std::move(out_);
  }

 private:
  static constexpr int kMostDepth = 50;

  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(str(where_, ": floe does not support ", what, " in the regular expression ",
                          quoted(expression_)));
  }

  bool done() const { return at_ >= expression_.size(); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < expression_.size() ? expression_[at_ + ahead] : '\0';
  }
  bool take(std::string_view text) {
    if (expression_.compare(at_, text.size(), text) != 0) return false;
    at_ += text.size();
    return true;
  }
  char32_t take_char() {
    const char* place = expression_.data() + at_;
    const char32_t c = next_char(place);
    at_ = static_cast<std::size_t>(place - expression_.data());
    return c;
  }

  void alternatives() {
    if (++depth_ > kMostDepth) refuse("groups nested this deep");
    for (;;) {
      while (!done() && peek() != '|' && peek() != ')') {
        const bool repeatable = item();
        repetition(repeatable);
      }
      last_literal_ = 0;
      if (!take("|")) break;
      out_ += "|";
    }
    --depth_;
  }

  // One thing that a repetition may follow; false for lookarounds, which it may not.
  bool item() {
    if (peek() == '(') return group();
    if (peek() == '[') {
      out_ += class_text(char_class());
    } else if (peek() == '\\') {
      Ranges ranges;
      escape(ranges);
      if (ranges.size() == 1 && ranges[0].first == ranges[0].second)
        literal(ranges[0].first);
      else
        plain(class_text(ranges));
    } else if (take(".")) {
      plain("[^\\x{a}]");
    } else if (peek() == '^' || peek() == '$') {
      refuse(str("'", peek(), "'"));
    } else if (std::string_view("*+?{").find(peek()) != std::string_view::npos) {
      refuse(str("a repetition '", peek(), "' of nothing"));
    } else {
      literal(take_char());
    }
    return true;
  }

  void plain(const std::string& text) {
    if (ignore_case_ > 0) refuse("a class of characters inside (?i:...)");
    last_literal_ = 0;
    out_ += text;
  }

  // Without regard to case the engines agree on single ASCII letters; Oniguruma also knows
  // characters that stand for two, such as the sharp s.
  void literal(char32_t c) {
    if (ignore_case_ > 0) {
      if (c >= 0x80) refuse("a character beyond ASCII inside (?i:...)");
      const char lower = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
      for (const char* pair : {"ss", "st", "ff", "fi", "fl"})
        if (last_literal_ == pair[0] && lower == pair[1])
          refuse(str("'", pair, "' inside (?i:...)"));
      last_literal_ = lower;
    }
    out_ += char_text(c);
  }

  bool group() {
    static constexpr std::string_view kLooks[] = {"(?=", "(?!", "(?<=", "(?<!"};
    last_literal_ = 0;
    bool looks = false, ignores_case = false;
    if (take("(?:")) {
      out_ += "(?:";
    } else if (take("(?>")) {
      out_ += "(?>";
    } else if (take("(?i:")) {
      out_ += "(?i:";
      ignores_case = true;
    } else {
      for (const std::string_view look : kLooks)
        if (!looks && take(look)) {
          looks = true;
          out_ += look;
        }
      if (!looks) {
        if (peek(1) == '?' || peek(1) == '*') refuse("the group " + expression_.substr(at_, 4));
        take("(");
        out_ += "(?:";
      }
    }
    ignore_case_ += ignores_case;
    alternatives();
    ignore_case_ -= ignores_case;
    if (!take(")")) refuse("an open '('");
    out_ += ")";
    return !looks;
  }

  void repetition(bool repeatable) {
    const std::size_t begin = at_;
    bool counted = false, exact = false;
    if (take("*") || take("+") || take("?")) {
    } else if (take("{")) {
      counted = true;
      const bool lower = number();
      exact = !take(",");
      if (!exact) number();
      if (!lower || !take("}")) refuse("this '{'");
    } else {
      return;
    }
    if (!repeatable) refuse("a repeated lookaround");
    // Oniguruma reads {n}? as an optional group and {n,m}+ as a repetition of a repetition.
    const bool lazy = take("?"), possessive = !lazy && take("+");
    if (lazy && exact) refuse("a lazy {n}");
    if (possessive && counted) refuse("a possessive {n,m}");
    if (std::string_view("*+?{").find(peek()) != std::string_view::npos && !done())
      refuse("a repetition of a repetition");
    last_literal_ = 0;
    out_ += expression_.substr(begin, at_ - begin);
  }

  bool number() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    if (at_ - begin > 4) refuse("a repetition of more than 9999");
    return at_ > begin;
  }

  Ranges char_class() {
    take("[");
    const bool inverted = take("^");
    Ranges ranges;
    bool first = true;
    while (first || peek() != ']') {
      if (done()) refuse("an open '['");
      if (peek() == ']') refuse("']' at the start of a class");
      if (peek() == '[' || (peek() == '&' && peek(1) == '&'))
        refuse(str("'", peek(), "' inside a class"));
      first = false;
      Ranges one;
      if (!class_char(one)) {
        ranges.insert(ranges.end(), one.begin(), one.end());
        continue;
      }
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < expression_.size()) {
        take("-");
        Ranges last;
        if (peek() == '[' || !class_char(last)) refuse("a range that ends with a class");
        if (last[0].first < one[0].first) refuse("a range that runs backwards");
        one[0].second = last[0].first;
      }
      ranges.push_back(one[0]);
    }
    take("]");
    if (ignore_case_ > 0) refuse("a class of characters inside (?i:...)");
    last_literal_ = 0;
    return inverted ? without(ranges) : joined(ranges);
  }

  // True for one character, false for a class such as \s.
  bool class_char(Ranges& ranges) {
    if (peek() == '\\') return escape(ranges);
    const char32_t c = take_char();
    ranges.emplace_back(c, c);
    return true;
  }

  // True for one character.
  bool escape(Ranges& ranges) {
    take("\\");
    if (done()) refuse("'\\' at the end");
    const auto one = [&](char32_t c) {
      ranges.emplace_back(c, c);
      return true;
    };
    const auto many = [&](Ranges found, bool inverted) {
      ranges = inverted ? without(found) : joined(std::move(found));
      return false;
    };
    const char32_t c = take_char();
    switch (c) {
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 't': return one('\t');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case 's':
      case 'S': return many(CharClasses::table().ranges(kSpace), c == 'S');
      case 'd':
      case 'D': return many(CharClasses::table().category("Nd"), c == 'D');
      case 'w':
      case 'W': return many(word_ranges(), c == 'W');
      case 'p':
      case 'P': return many(property(), (c == 'P') != property_inverted_);
      case 'x': return one(hexadecimal(take("{") ? '}' : '\0', 2));
      case 'u': return one(hexadecimal('\0', 4));
      default: break;
    }
    if (c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))
      refuse("'\\" + to_utf8(c) + "'");
    return one(c);
  }

  Ranges property() {
    if (!take("{")) refuse("\\p without braces");
    property_inverted_ = take("^");
    const std::size_t end = expression_.find('}', at_);
    if (end == std::string::npos) refuse("\\p without an end");
    const std::string name = expression_.substr(at_, end - at_);
    at_ = end + 1;
    Ranges ranges = name.size() <= 2 ? CharClasses::table().category(name) : Ranges{};
    if (ranges.empty()) refuse("\\p{" + name + "}");
    return ranges;
  }

  char32_t hexadecimal(char end, int digits) {
    char32_t value = 0;
    int count = 0;
    for (; count < (end ? 6 : digits); ++count) {
      const char c = peek();
      if (c >= '0' && c <= '9')
        value = value * 16 + static_cast<char32_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        value = value * 16 + static_cast<char32_t>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        value = value * 16 + static_cast<char32_t>(c - 'A' + 10);
      else
        break;
      ++at_;
    }
    const bool ended = end ? peek() == end : count == digits;
    // \x80 to \xff are bytes to Oniguruma.
    const bool byte = !end && digits == 2 && value >= 0x80;
    if (!count || !ended || byte || value > kLastChar || (value >= 0xd800 && value < 0xe000))
      refuse("this character given by number");
    if (end) ++at_;
    return value;
  }

  const std::string& expression_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
  int depth_ = 0;
  int ignore_case_ = 0;    // how many (?i: are open
  char last_literal_ = 0;  // the letter in front, in lower case, inside (?i:
  bool property_inverted_ = false;
};

}  // namespace

std::string to_pcre2(const std::string& expression, const std::string& where) {
  return Reader(expression, where).read();
}

}  // namespace floe::token
