#include "floe/token/unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>

#include "floe/core/error.h"
#include "floe/core/utf8.h"

namespace floe::token {
namespace {

// clang-format off
enum Category : std::uint8_t {
  kCc, kCf, kCn, kCo, kCs, kLl, kLm, kLo, kLt, kLu, kMc, kMe, kMn, kNd, kNl,
  kNo, kPc, kPd, kPe, kPf, kPi, kPo, kPs, kSc, kSk, kSm, kSo, kZl, kZp, kZs,
};
// clang-format on
constexpr const char* kCategoryNames[] = {
    "Cc", "Cf", "Cn", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl",
    "No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"};
constexpr std::uint16_t kCategoryMask = 31;

struct ClassRow {
  char32_t first;
  Category category;
  int flags;
};

struct LowerRow {
  char32_t upper, lower;
  int count, step;
};

#include "floe/token/unicode/char_class_table.inc"

std::uint16_t packed(const ClassRow& row) {
  const char major = kCategoryNames[row.category][0];
  return static_cast<std::uint16_t>(row.category | row.flags | (major == 'L' ? kLetter : 0) |
                                    (major == 'N' ? kNumber : 0));
}

// The ranges of rows that a test accepts, neighbours joined.
template <class Test>
std::vector<std::pair<char32_t, char32_t>> ranges_where(Test accepts) {
  std::vector<std::pair<char32_t, char32_t>> found;
  const std::size_t count = std::size(kClassRows);
  for (std::size_t i = 0; i < count; ++i) {
    if (!accepts(packed(kClassRows[i]))) continue;
    const char32_t first = kClassRows[i].first;
    const char32_t last = i + 1 < count ? kClassRows[i + 1].first - 1 : 0x10ffff;
    if (!found.empty() && found.back().second + 1 == first)
      found.back().second = last;
    else
      found.emplace_back(first, last);
  }
  return found;
}

struct Form {
  const char* name;
  CharFlag active;  // characters that can change, move or join
  utf8proc_option_t options;
};

const Form& form_of(NormalForm form) {
  constexpr auto option = [](int options) { return static_cast<utf8proc_option_t>(options); };
  static const Form forms[] = {
      {"NFC", kNFC, option(UTF8PROC_STABLE | UTF8PROC_COMPOSE)},
      {"NFD", kNFD, option(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE)},
      {"NFKC", kNFKC, option(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT)},
      {"NFKD", kNFKD, option(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT)}};
  return forms[static_cast<int>(form)];
}

// Whether the library may see the character in front of those that could join it. One that is
// younger than the package's tables stands still there, while the library would take it apart or,
// if it is a mark, sort it among its neighbours.
bool is_base(const char* at) {
  constexpr auto kNoDecomposition = UINT16_MAX;
  const char32_t c = next_char(at);
  const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  if (property->combining_class != 0) return false;
  return property->decomp_seqindex == kNoDecomposition ||
         (CharClasses::table().flags(c) & kNFKD) != 0;
}

// The whole part, by the library.
void append_normalized(std::string_view part, utf8proc_option_t options, std::string& result) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(part.data());
  const auto size = static_cast<utf8proc_ssize_t>(part.size());
  thread_local std::vector<utf8proc_int32_t> chars;
  utf8proc_ssize_t count = utf8proc_decompose(bytes, size, nullptr, 0, options);
  require<DataError>(count >= 0, "normalising text failed: ", utf8proc_errmsg(count));
  chars.resize(static_cast<std::size_t>(count) + 1);
  count = utf8proc_decompose(bytes, size, chars.data(), count, options);
  count = utf8proc_normalize_utf32(chars.data(), count, options);
  require<DataError>(count >= 0, "normalising text failed: ", utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(result, static_cast<char32_t>(chars[static_cast<std::size_t>(i)]));
}

}  // namespace

const CharClasses& CharClasses::table() {
  static const CharClasses classes;
  return classes;
}

CharClasses::CharClasses() {
  std::map<std::array<std::uint16_t, kBlockSize>, std::uint16_t> seen;
  std::array<std::uint16_t, kBlockSize> block{};
  std::size_t row = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (row + 1 < std::size(kClassRows) && kClassRows[row + 1].first == c) ++row;
    block[c & (kBlockSize - 1)] = packed(kClassRows[row]);
    if ((c & (kBlockSize - 1)) != kBlockSize - 1) continue;
    const auto [place, is_new] =
        seen.try_emplace(block, static_cast<std::uint16_t>(blocks_.size()));
    if (is_new) blocks_.push_back(block);
    block_of_.push_back(place->second);
  }
  std::copy_n(blocks_[block_of_[0]].begin(), kAscii, ascii_.begin());
}

std::vector<std::pair<char32_t, char32_t>> CharClasses::category(std::string_view name) const {
  return ranges_where([&](std::uint16_t flags) {
    const std::string_view category = kCategoryNames[flags & kCategoryMask];
    return category == name || (name.size() == 1 && category[0] == name[0]);
  });
}

std::vector<std::pair<char32_t, char32_t>> CharClasses::ranges(CharFlag flag) const {
  return ranges_where([&](std::uint16_t flags) { return (flags & flag) != 0; });
}

void append_lower(std::string& text, char32_t c) {
  if (c == 0x130) {  // the one character whose lower case is two
    text += "i\xcc\x87";
    return;
  }
  // Rows are sorted by their first character; runs with a step may lie inside each other.
  auto row = std::upper_bound(std::begin(kLowerRows), std::end(kLowerRows), c,
                              [](char32_t value, const LowerRow& r) { return value < r.upper; });
  for (int tries = 0; row != std::begin(kLowerRows) && tries < 3; ++tries) {
    --row;
    const auto distance = static_cast<int>(c - row->upper);
    if (distance % row->step == 0 && distance / row->step < row->count) {
      append_utf8(text, row->lower + static_cast<char32_t>(distance));
      return;
    }
  }
  append_utf8(text, c);
}

const char* name_of(NormalForm form) { return form_of(form).name; }

std::optional<NormalForm> normal_form_named(std::string_view name) {
  for (const NormalForm form :
       {NormalForm::nfc, NormalForm::nfd, NormalForm::nfkc, NormalForm::nfkd})
    if (name == name_of(form)) return form;
  return std::nullopt;
}

bool normalize(std::string_view text, NormalForm form, std::string& result) {
  const auto& [name, active, options] = form_of(form);
  const CharClasses& classes = CharClasses::table();
  const char* const end = text.data() + text.size();
  const char* done = text.data();      // everything before it is in `result`
  const char* previous = text.data();  // the character before `at`
  bool changed = false;
  for (const char* at = text.data(); at < end;) {
    const char* next = at;
    if (!(classes.flags(next_char(next)) & active)) {
      previous = at;
      at = next;
      continue;
    }
    // A run of active characters and the one before it, which they may join. Everything else stays
    // as it is and apart, whatever the library's version of Unicode says.
    const char* run_end = next;
    while (run_end < end) {
      next = run_end;
      if (!(classes.flags(next_char(next)) & active)) break;
      run_end = next;
    }
    const char* run = at == done || !is_base(previous) ? at : previous;
    result.append(done, run);
    append_normalized({run, static_cast<std::size_t>(run_end - run)}, options, result);
    changed = true;
    done = previous = at = run_end;
  }
  if (changed) result.append(done, end);
  return changed;
}

}  // namespace floe::token
