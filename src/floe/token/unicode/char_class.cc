#include <algorithm>
#include <map>

#include "floe/core/utf8.h"
#include "floe/token/unicode/unicode.h"

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

}  // namespace floe::token
