// Brace expansion, in the steps of Python's `braceexpand`: a pattern is a product of literals and
// expressions; an expression is a range, or a sequence of patterns at its commas, or no expression
// at all, and then its braces are literal.
#include <charconv>
#include <cstdint>
#include <optional>

#include "floe/core/error.h"
#include "floe/data/shards/shard_list.h"

namespace floe::data {
namespace {

using Strings = std::vector<std::string>;

constexpr int kMostBraces = 50;
constexpr std::size_t kMaxBytes = std::size_t{1} << 28;  // of all results together
constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

class Expander {
 public:
  Expander(std::string_view whole, std::size_t most) : whole_(whole), most_(most) {}

  Strings pattern(std::string_view text, int depth);

 private:
  std::optional<Strings> expression(std::string_view text, int depth);
  std::optional<Strings> sequence(std::string_view text, int depth);
  std::optional<Strings> number_range(std::string_view first, std::string_view last,
                                      std::string_view step) const;
  Strings product(const Strings& left, const Strings& right);
  void hold(const Strings& results, std::size_t more_bytes = 0) const;

  std::string_view whole_;
  std::size_t most_;
};

// Takes the escapes out; a `\` at the end stays.
std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] != '\n') ++i;
    out += text[i];
  }
  return out;
}

bool is_number(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_zero_padded(std::string_view text) {
  if (text == "0" || text == "-0") return false;
  return text.starts_with('0') || text.starts_with("-0");
}

// The number with zeros in front up to `width`, the sign counted.
std::string padded(std::int64_t value, std::size_t width) {
  std::string digits = std::to_string(value < 0 ? -value : value);
  const std::size_t sign = value < 0 ? 1 : 0;
  if (digits.size() + sign < width) digits.insert(0, width - sign - digits.size(), '0');
  return sign ? "-" + digits : digits;
}

void Expander::hold(const Strings& results, std::size_t more_bytes) const {
  std::size_t bytes = more_bytes;
  for (const auto& result : results) bytes += result.size();
  require<ConfigError>(results.size() <= most_ && bytes <= kMaxBytes, "'", whole_.substr(0, 200),
                       "' stands for more than ", most_,
                       " shards or for absurdly long names; use narrower braces or a @FILE");
}

Strings Expander::product(const Strings& left, const Strings& right) {
  std::size_t right_bytes = 0, left_bytes = 0;
  for (const auto& text : right) right_bytes += text.size();
  for (const auto& text : left) left_bytes += text.size();
  const auto excess = [&](std::size_t a, std::size_t b, std::size_t limit) {
    return b != 0 && a > limit / b;
  };
  require<ConfigError>(!excess(left.size(), right.size(), most_) &&
                           !excess(left_bytes, right.size(), kMaxBytes) &&
                           !excess(right_bytes, left.size(), kMaxBytes),
                       "'", whole_.substr(0, 200), "' stands for more than ", most_,
                       " shards or for absurdly long names; use narrower braces or a @FILE");
  Strings out;
  out.reserve(left.size() * right.size());
  for (const auto& head : left)
    for (const auto& tail : right) out.push_back(head + tail);
  return out;
}

Strings Expander::pattern(std::string_view text, int depth) {
  require<ConfigError>(depth < kMostBraces, "'", whole_.substr(0, 200), "' nests more than ",
                       kMostBraces, " braces");
  Strings results{""};
  std::size_t start = 0, at = 0;
  int open = 0;
  const auto literal = [&](std::size_t end) {
    if (start < end) results = product(results, {std::string(text.substr(start, end - start))});
    start = end;
  };
  for (; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '{') {
      if (open == 0) literal(at);
      ++open;
    } else if (text[at] == '}' && --open == 0) {
      const std::string_view inside = text.substr(start + 1, at - start - 1);
      if (auto items = expression(inside, depth)) {
        results = product(results, *items);
      } else {
        results = product(results, {"{"});
        results = product(results, pattern(inside, depth + 1));
        results = product(results, {"}"});
      }
      start = at + 1;
    }
  }
  require<ConfigError>(open == 0, "unbalanced braces in '", whole_.substr(0, 200),
                       "'; a brace that is part of a name is written \\{ or \\}");
  literal(text.size());
  // At every level, so that what stands in braces is unescaped more than once, as in the original.
  for (auto& result : results)
    if (result.find('\\') != std::string::npos) result = unescaped(result);
  return results;
}

std::optional<Strings> Expander::expression(std::string_view text, int depth) {
  const std::size_t first_dots = text.find("..");
  if (first_dots == std::string_view::npos) return sequence(text, depth);
  const std::string_view first = text.substr(0, first_dots);
  std::string_view last = text.substr(first_dots + 2), step;
  if (const std::size_t dots = last.find(".."); dots != std::string_view::npos) {
    step = last.substr(dots + 2);
    last = last.substr(0, dots);
    if (!is_number(step)) return sequence(text, depth);
    if (step.starts_with('-')) step.remove_prefix(1);
  }
  if (is_number(first) && is_number(last)) return number_range(first, last, step);
  const auto letter = [](std::string_view name) {
    return name.size() == 1 ? kLetters.find(name) : std::string_view::npos;
  };
  const std::size_t from = letter(first), to = letter(last);
  if (from == std::string_view::npos || to == std::string_view::npos) return sequence(text, depth);
  const std::size_t by = step.empty() ? 1 : static_cast<std::size_t>(number(step).value_or(52));
  Strings out;
  for (std::size_t i = 0; i <= (from < to ? to - from : from - to); i += by ? by : 1)
    out.emplace_back(1, kLetters[from < to ? from + i : from - i]);
  return out;
}

std::optional<Strings> Expander::number_range(std::string_view first, std::string_view last,
                                              std::string_view step) const {
  constexpr std::int64_t kMost = 1'000'000'000'000'000;
  const auto from = number(first), to = number(last);
  const auto by = step.empty() ? std::optional<std::int64_t>(1) : number(step);
  require<ConfigError>(from && to && by && std::abs(*from) < kMost && std::abs(*to) < kMost,
                       "the range {", first.substr(0, 40), "..", last.substr(0, 40), "} in '",
                       whole_.substr(0, 200), "' has numbers that are too large");
  const std::size_t width =
      is_zero_padded(first) || is_zero_padded(last) ? std::max(first.size(), last.size()) : 0;
  const std::uint64_t stride = *by ? static_cast<std::uint64_t>(*by) : 1;
  const auto span = static_cast<std::uint64_t>(*from < *to ? *to - *from : *from - *to);
  require<ConfigError>(span / stride < most_ && width < 4096, "'", whole_.substr(0, 200),
                       "' stands for more than ", most_, " shards; use narrower braces");
  Strings out;
  for (std::uint64_t i = 0; i <= span; i += stride) {
    const auto offset = static_cast<std::int64_t>(i);
    out.push_back(padded(*from < *to ? *from + offset : *from - offset, width));
    if (span - i < stride) break;
  }
  hold(out);
  return out;
}

std::optional<Strings> Expander::sequence(std::string_view text, int depth) {
  std::vector<std::string_view> parts;
  std::size_t start = 0;
  int open = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '{') {
      ++open;
    } else if (text[at] == '}') {
      --open;
    } else if (text[at] == ',' && open == 0) {
      parts.push_back(text.substr(start, at - start));
      start = at + 1;
    }
  }
  if (open != 0 || parts.empty()) return std::nullopt;
  parts.push_back(text.substr(start));
  Strings out;
  for (const std::string_view part : parts) {
    for (auto& result : pattern(part, depth + 1)) out.push_back(std::move(result));
    hold(out);
  }
  return out;
}

}  // namespace

std::vector<std::string> expand_braces(std::string_view pattern, std::size_t most) {
  return Expander(pattern, most).pattern(pattern, 0);
}

}  // namespace floe::data
