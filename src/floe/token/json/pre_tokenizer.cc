#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"
#include "floe/token/bpe/bpe.h"
#include "floe/token/json/json_fields.h"
#include "floe/token/json/parts.h"
#include "floe/token/regex/regex.h"
#include "floe/token/unicode/unicode.h"

namespace floe::token {
namespace {

// What becomes of the matches at which a piece is cut; for "the-final--countdown" cut at "-":
enum class SplitBehavior {
  removed,               // the final countdown
  isolated,              // the - final - - countdown
  merged_with_previous,  // the- final- - countdown
  merged_with_next,      // the -final - -countdown
  contiguous,            // the - final -- countdown
};

constexpr const char* kNames[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                  "Contiguous"};

const char* name_of(SplitBehavior behavior) { return kNames[static_cast<int>(behavior)]; }

// Throws DataError for other names.
SplitBehavior read_split_behavior(const std::string& name, const std::string& where) {
  for (std::size_t i = 0; i < std::size(kNames); ++i)
    if (name == kNames[i]) return static_cast<SplitBehavior>(i);
  throw DataError(
      str(where, ": \"behavior\" must be one of ", join(kNames), ", not ", quoted(name)));
}

// A piece as a row of matches and of what lies between them.
struct Segment {
  std::size_t begin, end;
  bool is_match;
};

// Adds the segments to `pieces` as the behaviour joins them.
void add_segments(std::string_view text, const std::vector<Segment>& segments,
                  SplitBehavior behavior, Pieces& pieces) {
  const auto add = [&](std::size_t begin, std::size_t end) {
    pieces.add(text.substr(begin, end - begin));
  };
  // Of several matches in a row only one joins its neighbour: the first the one in front, the last
  // the one behind.
  const auto joins = [&](std::size_t left) {  // `left` with the segment behind it
    const bool first = segments[left].is_match, second = segments[left + 1].is_match;
    switch (behavior) {
      case SplitBehavior::merged_with_previous: return second && !first;
      case SplitBehavior::merged_with_next: return first && !second;
      case SplitBehavior::contiguous: return first == second;
      default: return false;
    }
  };
  std::size_t begin = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (behavior == SplitBehavior::removed) {
      if (!segments[i].is_match) add(segments[i].begin, segments[i].end);
      continue;
    }
    if (i == 0 || !joins(i - 1)) begin = segments[i].begin;
    if (i + 1 == segments.size() || !joins(i)) add(begin, segments[i].end);
  }
}

// Cuts at the matches, or with `invert` at what lies between them.
void split(std::string_view text, const Pattern& pattern, SplitBehavior behavior, bool invert,
           Pieces& pieces) {
  thread_local std::vector<Segment> segments;
  // The common cases need no list: every segment is a piece, or every match is.
  const bool isolated = behavior == SplitBehavior::isolated;
  const bool only_matches = behavior == SplitBehavior::removed && invert;
  segments.clear();
  std::size_t done = 0;
  Pattern::Match match;
  const auto between = [&](std::size_t end) {
    if (done == end || only_matches) return;
    if (isolated)
      pieces.add(text.substr(done, end - done));
    else
      segments.push_back({done, end, invert});
  };
  while (pattern.find(text, done, match)) {
    between(match.begin);
    if (isolated || only_matches)
      pieces.add(text.substr(match.begin, match.end - match.begin));
    else
      segments.push_back({match.begin, match.end, !invert});
    done = match.end;
  }
  between(text.size());
  if (!isolated && !only_matches) add_segments(text, segments, behavior, pieces);
}

// Cuts at every single character that the test accepts.
template <class Test>
void split_chars(std::string_view text, const Test& accepts, SplitBehavior behavior,
                 Pieces& pieces) {
  thread_local std::vector<Segment> segments;
  segments.clear();
  std::size_t done = 0;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    const auto begin = static_cast<std::size_t>(at - text.data());
    if (!accepts(next_char(at))) continue;
    const auto end = static_cast<std::size_t>(at - text.data());
    if (done < begin) segments.push_back({done, begin, false});
    segments.push_back({begin, end, true});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), false});
  add_segments(text, segments, behavior, pieces);
}

// Cuts by GPT-2's expression and turns words into bytes.
class ByteLevelStep : public CutStep {
 public:
  ByteLevelStep(bool prefix_space, bool use_regex, bool write_chars)
      : prefix_space_(prefix_space),
        write_chars_(write_chars),
        pattern_(use_regex ? make_regex(kGpt2Expression, "ByteLevel") : nullptr) {}

  void apply(Pieces& pieces) const override {
    pieces.cut_each([&](std::string_view piece) {
      if (prefix_space_ && piece[0] != ' ') piece = pieces.new_text().append(" ").append(piece);
      if (pattern_)
        split(piece, *pattern_, SplitBehavior::isolated, false, pieces);
      else
        pieces.add(piece);
    });
    // The model knows how to read bytes; only a step behind this one needs them as characters.
    if (write_chars_)
      pieces.cut_each([&](std::string_view piece) {
        std::string& text = pieces.new_text();
        append_bytes_as_chars(text, piece);
        pieces.add(text);
      });
  }
  std::string describe() const override {
    return str("bytes", pattern_ ? " cut as GPT-2 does" : "",
               prefix_space_ ? ", a space put in front" : "");
  }

 private:
  bool prefix_space_, write_chars_;
  std::unique_ptr<Pattern> pattern_;
};

class SplitStep : public CutStep {
 public:
  SplitStep(std::unique_ptr<Pattern> pattern, std::string shown, SplitBehavior behavior,
            bool invert)
      : pattern_(std::move(pattern)),
        shown_(std::move(shown)),
        behavior_(behavior),
        invert_(invert) {}

  void apply(Pieces& pieces) const override {
    pieces.cut_each(
        [&](std::string_view piece) { split(piece, *pattern_, behavior_, invert_, pieces); });
  }
  std::string describe() const override {
    return str("cut by ", shown_, " (", name_of(behavior_), invert_ ? ", inverted)" : ")");
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string shown_;
  SplitBehavior behavior_;
  bool invert_;
};

// Cuts where single characters have a flag.
class FlagStep : public CutStep {
 public:
  FlagStep(CharFlag flag, SplitBehavior behavior, std::string words)
      : flag_(flag), behavior_(behavior), words_(std::move(words)) {}

  void apply(Pieces& pieces) const override {
    const CharClasses& classes = CharClasses::table();
    pieces.cut_each([&](std::string_view piece) {
      split_chars(
          piece, [&](char32_t c) { return (classes.flags(c) & flag_) != 0; }, behavior_, pieces);
    });
  }
  std::string describe() const override { return words_; }

 private:
  CharFlag flag_;
  SplitBehavior behavior_;
  std::string words_;
};

// \w+|[^\w\s]+ : runs of word characters and runs of others; white space disappears.
class WhitespaceStep : public CutStep {
 public:
  void apply(Pieces& pieces) const override {
    const CharClasses& classes = CharClasses::table();
    pieces.cut_each([&](std::string_view piece) {
      const char* const end = piece.data() + piece.size();
      const char* begin = piece.data();
      int kind = -1;
      for (const char* at = begin; at <= end;) {
        const char* next = at;
        int now = -1;
        if (at < end) {
          const auto flags = classes.flags(next_char(next));
          now = flags & kWord ? 2 : flags & kSpace ? 0 : 1;
        } else {
          ++next;
        }
        if (now != kind) {
          if (kind > 0) pieces.add({begin, static_cast<std::size_t>(at - begin)});
          begin = at;
          kind = now;
        }
        at = next;
      }
    });
  }
  std::string describe() const override { return "cut at white space and around punctuation"; }
};

class MetaspaceStep : public CutStep {
 public:
  enum class Prefix { always, first, never };

  MetaspaceStep(char32_t mark, Prefix prefix, bool cut)
      : mark_(to_utf8(mark)), mark_char_(mark), prefix_(prefix), cut_(cut) {}

  void apply(Pieces& pieces) const override {
    const bool wanted =
        prefix_ == Prefix::always || (prefix_ == Prefix::first && pieces.at_start());
    pieces.cut_each([&](std::string_view piece) {
      std::string& text = pieces.new_text();
      if (wanted && piece[0] != ' ' && !piece.starts_with(mark_)) text = mark_;
      for (const char c : piece)
        if (c == ' ')
          text += mark_;
        else
          text.push_back(c);
      if (cut_)
        split_chars(
            text, [&](char32_t c) { return c == mark_char_; }, SplitBehavior::merged_with_next,
            pieces);
      else
        pieces.add(text);
    });
  }
  std::string describe() const override {
    return str("spaces become ", mark_,
               prefix_ == Prefix::always  ? ", one put in front"
               : prefix_ == Prefix::first ? ", one put in front of the text"
                                          : "",
               cut_ ? ", cut in front of it" : "");
  }

 private:
  std::string mark_;
  char32_t mark_char_;
  Prefix prefix_;
  bool cut_;
};

std::unique_ptr<CutStep> read_metaspace(JsonFields& fields, bool is_first) {
  using Prefix = MetaspaceStep::Prefix;
  const char32_t mark = fields.character("replacement");
  const std::string scheme = fields.text_if_any("prepend_scheme").value_or("always");
  require<DataError>(scheme == "always" || scheme == "first" || scheme == "never", fields.where(),
                     ": \"prepend_scheme\" must be always, first or never, not ", quoted(scheme));
  Prefix prefix = scheme == "always"  ? Prefix::always
                  : scheme == "first" ? Prefix::first
                                      : Prefix::never;
  if (!fields.flag("add_prefix_space", true))
    require<DataError>(prefix == Prefix::never, fields.where(),
                       ": \"add_prefix_space\" contradicts \"prepend_scheme\"");
  require<ConfigError>(is_first || prefix != Prefix::first, fields.where(),
                       ": floe does not support Metaspace with the prepend scheme 'first' behind "
                       "another pre-tokenizer");
  fields.ignore("str_rep");
  return std::make_unique<MetaspaceStep>(mark, prefix, fields.flag("split", true));
}

}  // namespace

PreTokenizer::PreTokenizer(const nlohmann::json& pre_tokenizer,
                           std::optional<bool> add_prefix_space, const std::string& where) {
  if (!pre_tokenizer.is_null()) read(pre_tokenizer, add_prefix_space, where, true);
}

void PreTokenizer::read(const nlohmann::json& step, std::optional<bool> add_prefix_space,
                        const std::string& where, bool is_last) {
  JsonFields fields(step, where);
  const std::string type = fields.type();
  if (type == "Sequence") {
    const auto& parts = fields.list("pretokenizers");
    for (std::size_t i = 0; i < parts.size(); ++i)
      read(parts[i], std::nullopt, where, is_last && i + 1 == parts.size());
  } else if (type == "ByteLevel") {
    const bool own_space = fields.flag("add_prefix_space");
    fields.ignore("trim_offsets");
    steps_.push_back(std::make_unique<ByteLevelStep>(add_prefix_space.value_or(own_space),
                                                     fields.flag("use_regex", true), !is_last));
    gives_bytes_ = is_last;
  } else if (type == "Split") {
    const auto& pattern = fields.object("pattern");
    auto compiled = read_pattern(pattern, where + " (Split)");
    const SplitBehavior behavior = read_split_behavior(fields.text("behavior"), where);
    steps_.push_back(std::make_unique<SplitStep>(std::move(compiled), shown(*pattern.begin()),
                                                 behavior, fields.flag("invert")));
  } else if (type == "Digits") {
    const bool single = fields.flag("individual_digits");
    steps_.push_back(std::make_unique<FlagStep>(
        kNumeric, single ? SplitBehavior::isolated : SplitBehavior::contiguous,
        single ? "digits one by one" : "numbers apart"));
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(
        std::make_unique<FlagStep>(kSpace, SplitBehavior::removed, "cut at white space"));
  } else if (type == "Whitespace") {
    steps_.push_back(std::make_unique<WhitespaceStep>());
  } else if (type == "Metaspace") {
    steps_.push_back(read_metaspace(fields, steps_.empty()));
  } else {
    throw ConfigError(str(where, ": floe does not support the pre-tokenizer ", quoted(type),
                          "; it knows ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, "
                          "Metaspace and Sequence"));
  }
  fields.finish();
}

std::string PreTokenizer::describe() const {
  std::vector<std::string> words;
  for (const auto& step : steps_) words.push_back(step->describe());
  return words.empty() ? "none" : join(words, ", then ");
}

}  // namespace floe::token
