
#include "floe/core/utf8.h"
#include "floe/token/regex/regex.h"
#include "floe/token/unicode/unicode.h"

namespace floe::token {

const char* const kGpt2Expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr const char* kLlama3Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::uint16_t kAnyKind =
    kLetter | kNumber | kSpace;  // none of them: punctuation and such

// A walk over UTF-8 text that knows the kind of the character it stands before.
class Walk {
 public:
  Walk(const char* at, const char* end) : at_(at), end_(end) { look(); }

  const char* at() const { return at_; }
  bool done() const { return at_ == end_; }
  char32_t character() const { return character_; }  // 0 at the end
  bool is(std::uint16_t flag) const { return (flags_ & flag) != 0; }
  // Neither letter, number nor space, and not the end.
  bool is_other() const { return flags_ == 0 && !done(); }
  bool is_line_end() const { return !done() && (character_ == '\n' || character_ == '\r'); }

  void step() {
    at_ = next_;
    look();
  }
  void skip(std::uint16_t flag) {
    while (is(flag)) step();
  }
  void skip_others() {
    while (is_other()) step();
  }

 private:
  void look() {
    next_ = at_;
    character_ = at_ == end_ ? 0 : next_char(next_);
    flags_ = at_ == end_ ? 0 : table_->flags(character_) & kAnyKind;
  }

  const CharClasses* table_ = &CharClasses::table();
  const char* at_;
  const char* end_;
  const char* next_ = nullptr;
  char32_t character_ = 0;
  std::uint16_t flags_ = 0;
};

// \s+(?!\S)|\s+ : a run of white space leaves its last character to the word behind it.
const char* end_of_spaces(const char* at, const char* end) {
  Walk walk(at, end);
  const char* last = at;
  int count = 0;
  for (; walk.is(kSpace); walk.step(), ++count) last = walk.at();
  return walk.done() || count == 1 ? walk.at() : last;
}

// The length of 's 't 're 've 'm 'll 'd at `at`, or 0.
std::size_t contraction(const char* at, const char* end) {
  const auto rest = static_cast<std::size_t>(end - at);
  if (rest < 2 || *at != '\'') return 0;
  switch (at[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd': return 2;
    case 'r':
    case 'v': return rest > 2 && at[2] == 'e' ? 3 : 0;
    case 'l': return rest > 2 && at[2] == 'l' ? 3 : 0;
    default: return 0;
  }
}

// The same in any case. U+017F is a lower-case s to every engine that knows Unicode.
std::size_t contraction_in_any_case(const char* at, const char* end) {
  const auto rest = static_cast<std::size_t>(end - at);
  if (rest < 2 || *at != '\'') return 0;
  if (rest > 2 && at[1] == '\xc5' && at[2] == '\xbf') return 3;
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const char low[3] = {'\'', lower(at[1]), rest > 2 ? lower(at[2]) : '\0'};
  return contraction(low, low + (rest > 2 ? 3 : 2));
}

// Both expressions match at every place, so the text falls into words without gaps.
class KnownPattern : public Pattern {
 public:
  bool find(std::string_view text, std::size_t from, Match& match) const final {
    if (from >= text.size()) return false;
    const char* begin = text.data() + from;
    const char* end = text.data() + text.size();
    match = {from, static_cast<std::size_t>(word_end(begin, end) - text.data())};
    return true;
  }

 private:
  virtual const char* word_end(const char* at, const char* end) const = 0;
};

class Gpt2Pattern : public KnownPattern {
  const char* word_end(const char* at, const char* end) const override {
    if (*at == '\'')
      if (const std::size_t length = contraction(at, end)) return at + length;
    Walk walk(at, end);
    if (*at == ' ') walk.step();
    if (walk.is(kLetter)) {
      walk.skip(kLetter);
    } else if (walk.is(kNumber)) {
      walk.skip(kNumber);
    } else if (walk.is_other()) {
      walk.skip_others();
    } else {
      return end_of_spaces(at, end);
    }
    return walk.at();
  }
};

// Llama 3 and Qwen2, which differ in how many digits stay together.
class Cl100kPattern : public KnownPattern {
 public:
  explicit Cl100kPattern(int most_digits) : most_digits_(most_digits) {}

 private:
  const char* word_end(const char* at, const char* end) const override {
    if (*at == '\'')
      if (const std::size_t length = contraction_in_any_case(at, end)) return at + length;
    Walk walk(at, end);
    const bool begins_with_number = walk.is(kNumber);
    if (begins_with_number) {
      for (int i = 0; i < most_digits_ && walk.is(kNumber); ++i) walk.step();
      return walk.at();
    }
    // [^\r\n\p{L}\p{N}]?\p{L}+
    if (!walk.is(kLetter) && !walk.is_line_end()) walk.step();
    if (walk.is(kLetter)) {
      walk.skip(kLetter);
      return walk.at();
    }
    //  ?[^\s\p{L}\p{N}]+[\r\n]*
    walk = Walk(at, end);
    if (*at == ' ') walk.step();
    if (walk.is_other()) {
      walk.skip_others();
      while (walk.is_line_end()) walk.step();
      return walk.at();
    }
    // \s*[\r\n]+ : through the last line end of the run
    const char* behind_line_end = nullptr;
    for (walk = Walk(at, end); walk.is(kSpace);) {
      const bool line_end = walk.is_line_end();
      walk.step();
      if (line_end) behind_line_end = walk.at();
    }
    return behind_line_end ? behind_line_end : end_of_spaces(at, end);
  }

  int most_digits_;
};

}  // namespace

std::unique_ptr<Pattern> known_pattern(const std::string& expression) {
  if (expression == kGpt2Expression) return std::make_unique<Gpt2Pattern>();
  if (expression == kLlama3Expression) return std::make_unique<Cl100kPattern>(3);
  if (expression == kQwen2Expression) return std::make_unique<Cl100kPattern>(1);
  return nullptr;
}

}  // namespace floe::token
