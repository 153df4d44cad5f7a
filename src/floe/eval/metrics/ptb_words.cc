#include "floe/eval/metrics/ptb_words.h"

#include <utf8proc.h>

#include <array>
#include <map>
#include <set>
#include <utility>

#include "floe/core/utf8.h"
#include "floe/eval/metrics/words.h"

namespace floe::eval {
namespace {

using Text = std::u32string;
using View = std::u32string_view;

bool is_digit_char(char32_t c) { return c >= U'0' && c <= U'9'; }

bool is_letter(char32_t c) {
  if (c < 0x80) return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z');
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_MC;
}

bool is_word_char(char32_t c) { return is_letter(c) || is_digit_char(c); }

bool is_vowel(char32_t c) { return View(U"aeiouyAEIOUY").find(c) != View::npos; }

// What the reference has no rule for and leaves out, with a warning: the replacement character of
// bytes that were no text, controls, and what Unicode did not have when it was written.
bool is_left_out(char32_t c) {
  if (c < 0x20 || c == 0x7f || c >= 0x10000) return true;
  if (c < 0x80) return false;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_NL: return true;
    default: break;
  }
  // Hyphens and dashes but – and —, signs of money but € and ₤, CJK's brackets, variants of emoji.
  return c == 0xfffd || c == 0xfffc || (c >= 0xfe00 && c <= 0xfe0f) ||
         (c >= 0x2010 && c <= 0x2012) || c == 0x2015 ||
         (c > 0x20a0 && c < 0x20d0 && c != 0x20a4 && c != 0x20ac) || (c >= 0x3008 && c <= 0x301f);
}

// Marks that stand for others before anything is cut.
Text plain_marks(std::string_view caption) {
  static const std::map<char32_t, View> marks{
      {0x2018, U"'"},  {0x2019, U"'"},   {0x201b, U"'"},    {0x201c, U"\""},  {0x201d, U"\""},
      {0x2039, U"'"},  {0x203a, U"'"},   {0xab, U"\""},     {0xbb, U"\""},    {0x2013, U"--"},
      {0x2014, U"--"}, {0x2026, U"..."}, {0xbd, U" 1/2 "},  {0xbc, U" 1/4 "}, {0xbe, U" 3/4 "},
      {0xa3, U" # "},  {0x20ac, U" $ "}, {0xa2, U" cents "}};
  static const std::array<std::pair<std::string_view, std::string_view>, 5> entities{
      {{"&amp;", " & "}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}}};
  std::string text = is_utf8(caption) ? std::string(caption) : replace_invalid_utf8(caption);
  for (const auto& [entity, mark] : entities) text = replaced(text, entity, mark);
  Text out;
  const char* at = text.data();
  for (const char* end = at + text.size(); at < end;) {
    const char32_t c = next_char(at);
    if (const auto found = marks.find(c); found != marks.end())
      out += found->second;
    else if (is_python_space(c) || is_left_out(c))
      out += U' ';
    else
      out += c;
  }
  return out;
}

std::string lowered_word(View word) {
  std::string bytes;
  for (const char32_t c : word) append_utf8(bytes, c);
  return lowered(bytes);
}

const std::set<std::string>& abbreviations() {
  static const std::set<std::string> table = [] {
    const auto words = split_words(
        "mr mrs ms dr drs prof profs sen sens rep reps atty attys lt col gen messrs gov govs adm "
        "rev maj sgt cpl pvt mt capt st ste ave pres lieut hon brig cmdr comdr pfc spc supt supts "
        "det jr sr inc co cos corp ltd plc bancorp dept bhd assn univ intl sys invt elec natl mfg "
        "mtg bros jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thurs fri "
        "ala ariz calif colo conn ct dak fla ga ind kan kans ky md mich minn mo mont neb nev okla "
        "penn tenn va vt wis wisc wyo etc al seq est ext blvd rd ft sq bldg esq mme mlle rt ph vs "
        "tel asst cf");
    return std::set<std::string>(words.begin(), words.end());
  }();
  return table;
}

// Those that are words of their own in small letters.
const std::set<std::string>& capital_abbreviations() {
  static const std::set<std::string> table{"miss", "az",  "ark", "del", "ill", "la",
                                           "mass", "ore", "pa",  "tex", "wash"};
  return table;
}

const std::map<std::string, std::size_t>& joined_words() {  // and where they are cut
  static const std::map<std::string, std::size_t> table{{"cannot", 3}, {"gonna", 3}, {"gotta", 3},
                                                        {"lemme", 3},  {"gimme", 3}, {"wanna", 3}};
  return table;
}

class Cutter {
 public:
  explicit Cutter(Text text) : text_(std::move(text)) {}

  std::vector<std::string> cut() {
    while (at_ < text_.size()) {
      if (text_[at_] == U' ')
        ++at_;
      else if (!address() && !tag() && !apostrophe() && !number() && !word())
        mark();
    }
    return std::move(words_);
  }

 private:
  char32_t peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U' ';
  }
  char32_t char_at(std::size_t place) const { return place < text_.size() ? text_[place] : U' '; }

  // Whether this (in small letters) comes next and no letter or digit follows.
  bool follows(View what) const {
    for (std::size_t i = 0; i < what.size(); ++i) {
      const char32_t c = peek(i);
      if ((c >= U'A' && c <= U'Z' ? c + 32 : c) != what[i]) return false;
    }
    return !is_word_char(peek(what.size()));
  }
  bool take(std::size_t length) {
    words_.push_back(lowered_word(View(text_).substr(at_, length)));
    at_ += length;
    return true;
  }

  bool address() {
    const View rest = View(text_).substr(at_, text_.find(U' ', at_) - at_);
    const bool web = (rest.starts_with(U"http://") || rest.starts_with(U"https://")) &&
                     rest.find(U'.') != View::npos;
    if (web) return take(rest.size());
    const std::size_t sign = rest.find(U'@');
    if (sign == View::npos || sign == 0 || !is_word_char(rest[0])) return false;
    const auto is_part = [](char32_t c) {
      return is_word_char(c) || c == U'.' || c == U'_' || c == U'-' || c == U'@';
    };
    std::size_t end = 0;
    while (end < rest.size() && is_part(rest[end])) ++end;
    while (end > 0 && !is_word_char(rest[end - 1])) --end;
    return end > sign + 1 && take(end);
  }

  // <a>, </a>
  bool tag() {
    if (peek() != U'<') return false;
    std::size_t end = peek(1) == U'/' ? 2 : 1;
    const std::size_t first = end;
    while (is_word_char(peek(end))) ++end;
    return end > first && is_letter(peek(first)) && peek(end) == U'>' && take(end + 1);
  }

  // 's 'll n't 'em 'n' '90s: words that begin with an apostrophe, alone or behind a word.
  bool apostrophe() {
    if (peek() != U'\'') return false;
    if ((peek(1) == U'n' || peek(1) == U'N') && !is_letter(peek(2)))
      return take(peek(2) == U'\'' ? 3 : 2);
    if (peek(1) >= U'2' && peek(1) <= U'9' && peek(2) == U'0' && peek(3) == U's') return take(4);
    for (const View part :
         {U"'s", U"'m", U"'d", U"'re", U"'ve", U"'ll", U"'em", U"'til", U"'till", U"'cause"})
      if (follows(part)) return take(part.size());
    if (follows(U"'tis") || follows(U"'twas")) return take(2);
    return false;
  }

  bool number() {
    std::size_t end = 0;
    const bool starts = at_ == 0 || text_[at_ - 1] == U' ';
    if ((peek() == U'-' || peek() == U'+') && starts) end = 1;
    if (peek(end) == U'.' && is_digit_char(peek(end + 1)))
      ++end;
    else if (!is_digit_char(peek(end)))
      return false;
    bool plain = true;
    while (is_digit_char(peek(end)) ||
           (View(U".,:/-").find(peek(end)) != View::npos && is_digit_char(peek(end + 1)) &&
            is_digit_char(peek(end - 1)))) {
      plain = plain && (is_digit_char(peek(end)) || peek(end) == U'-');
      ++end;
    }
    if (plain && (is_letter(peek(end)) || (peek(end) == U'-' && is_letter(peek(end + 1)))))
      return false;  // 20th, 3-year-old
    return take(end);
  }

  // How far a word goes with what may join its parts.
  std::size_t word_end() const {
    std::size_t end = at_;
    while (true) {
      const char32_t c = char_at(end), next = char_at(end + 1);
      if (is_word_char(c)) {
        ++end;
        continue;
      }
      if (end == at_ || !is_word_char(next)) return end;
      const char32_t before = text_[end - 1];
      const bool letters = is_letter(before) && is_letter(next) && !is_digit_char(text_[at_]);
      const bool capitals = before >= U'A' && before <= U'Z' && next >= U'A' && next <= U'Z';
      const bool joins = c == U'-' || c == U'_' || c == U'/' || (c == U'&' && capitals) ||
                         ((c == U'.' || c == U'!' || c == U'?') && letters) ||
                         (c == U'\'' && inner_apostrophe(end));
      if (!joins) return end;
      ++end;
    }
  }

  // o'clock, d'artagnan, ma'am: no contraction.
  bool inner_apostrophe(std::size_t place) const {
    if (place == at_ + 1 && View(U"oOdDlL").find(text_[at_]) != View::npos)
      return is_letter(char_at(place + 1));
    std::size_t end = place + 1;
    while (is_letter(char_at(end))) ++end;
    return is_vowel(text_[place - 1]) && text_[place - 1] != U'y' && is_vowel(char_at(place + 1)) &&
           end > place + 2;
  }

  bool word() {
    if (!is_word_char(peek())) {
      const bool tagged = (peek() == U'#' || peek() == U'@') && is_letter(peek(1));
      if (!tagged) return false;
      std::size_t end = 1;
      while (is_word_char(peek(end)) || peek(end) == U'_') ++end;
      return take(end);
    }
    std::size_t length = word_end() - at_;
    // u.s., p.m., and single letters
    if (peek(length) == U'.' && is_acronym(View(text_).substr(at_, length)))
      return take(length + 1);
    const View found = View(text_).substr(at_, length);
    const std::string small = lowered_word(found);
    if (peek(length) == U'.' && is_abbreviation(small, found, length)) return take(length + 1);
    if (peek(length) == U'\'') return before_apostrophe(small, length);
    if ((small == "c" || small == "f") && peek(1) == U'#') return take(2);
    if (small == "c" && peek(1) == U'+' && peek(2) == U'+') return take(3);
    if (const auto joined = joined_words().find(small); joined != joined_words().end())
      take(std::exchange(length, length - joined->second) - length);
    return take(length);
  }

  static bool is_acronym(View word) {
    if (word.size() % 2 == 0) return false;
    for (std::size_t i = 0; i < word.size(); ++i)
      if (i % 2 == 0 ? !is_letter(word[i]) || word[i] >= 0x80 : word[i] != U'.') return false;
    return true;
  }
  bool is_abbreviation(const std::string& small, View found, std::size_t length) const {
    if (small == "no" || small == "nos") {
      const std::size_t next = peek(length + 1) == U' ' ? length + 2 : length + 1;
      return is_digit_char(peek(next));
    }
    const bool capital = found[0] >= U'A' && found[0] <= U'Z';
    return small == "ph.d" || abbreviations().contains(small) ||
           (capital && capital_abbreviations().contains(small));
  }

  bool before_apostrophe(const std::string& small, std::size_t length) {
    at_ += length;
    const bool not_contraction = follows(U"'t") && small.ends_with("n");
    const bool is_n = (peek(1) == U'n' || peek(1) == U'N') && !is_letter(peek(2));
    at_ -= length;
    if (not_contraction) {
      if (length > 1) take(length - 1);
      return take(3);
    }
    const bool keeps = small == "ol" || small == "somethin" || small == "dunkin" || small == "y";
    const bool letter_follows = is_letter(peek(length + 1));
    if (keeps && !is_n && letter_follows == (small == "y")) return take(length + 1);
    return take(length);
  }

  void mark() {
    const char32_t c = peek();
    std::size_t run = 1;
    while (peek(run) == c) ++run;
    if (c == U'!' || c == U'?') {
      while (peek(run) == U'!' || peek(run) == U'?') ++run;
      push(lowered_word(View(text_).substr(at_, run)), run);
    } else if (c == U'.') {
      push(run >= 3 ? "..." : ".", run >= 3 ? run : 1);
    } else if (c == U'-') {
      push(run > 1 ? "--" : "-", run);
    } else if ((c == U':' || c == U';') && is_face()) {
      const bool nose = peek(1) == U'-';
      push(lowered_word(View(text_).substr(at_, nose ? 2 : 1)) +
               (peek(nose ? 2 : 1) == U')' ? "-rrb-" : "-lrb-"),
           nose ? 3 : 2);
    } else if (c == U'_' || c == U'*') {
      push(std::string(run, static_cast<char>(c)), run);
    } else if (const auto name = brackets().find(c); name != brackets().end()) {
      push(name->second, 1);
    } else if (c == U'"' || c == U'\'' || c == U'`') {
      ++at_;
    } else {
      take(1);
    }
  }
  bool is_face() const {
    const char32_t mouth = peek(1) == U'-' ? peek(2) : peek(1);
    return mouth == U')' || mouth == U'(';
  }
  static const std::map<char32_t, std::string>& brackets() {
    static const std::map<char32_t, std::string> names{{U'(', "-lrb-"}, {U')', "-rrb-"},
                                                       {U'[', "-lsb-"}, {U']', "-rsb-"},
                                                       {U'{', "-lcb-"}, {U'}', "-rcb-"}};
    return names;
  }
  void push(std::string word, std::size_t length) {
    words_.push_back(std::move(word));
    at_ += length;
  }

  Text text_;
  std::size_t at_ = 0;
  std::vector<std::string> words_;
};

}  // namespace

std::vector<std::string> ptb_words(std::string_view caption) {
  static const std::set<std::string> removed{"''", "'", "``", "`",  ".",   "?", "!",
                                             ",",  ":", "-",  "--", "...", ";"};
  std::vector<std::string> words = Cutter(plain_marks(caption)).cut();
  std::erase_if(words, [](const std::string& word) { return removed.contains(word); });
  return words;
}

}  // namespace floe::eval
