#include "floe/eval/metrics/words.h"

#include <utf8proc.h>

#include "floe/core/utf8.h"

namespace floe::eval {
namespace {

// Bytes that are not UTF-8 come from a model's mouth now and then.
std::string well_formed(std::string_view text) {
  return is_utf8(text) ? std::string(text) : replace_invalid_utf8(text);
}

}  // namespace

bool is_python_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::vector<std::string> split_words(std::string_view given) {
  const std::string text = well_formed(given);
  std::vector<std::string> words;
  std::string word;
  const char* at = text.data();
  for (const char* end = at + text.size(); at < end;) {
    const char32_t c = next_char(at);
    if (!is_python_space(c)) {
      append_utf8(word, c);
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

std::string_view stripped(std::string_view text) {
  if (!is_utf8(text)) return text;
  const char *first = text.data(), *last = first + text.size();
  while (first < last) {
    const char* next = first;
    if (!is_python_space(next_char(next))) break;
    first = next;
  }
  while (first < last) {
    const char* before = previous_char(last);
    const char* next = before;
    if (!is_python_space(next_char(next))) break;
    last = before;
  }
  return {first, static_cast<std::size_t>(last - first)};
}

std::string lowered(std::string_view given) {
  const std::string text = well_formed(given);
  std::string out;
  const char* at = text.data();
  for (const char* end = at + text.size(); at < end;)
    append_utf8(
        out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(next_char(at)))));
  return out;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t first = 0;
  for (std::size_t at = 0; (at = text.find(from, first)) != std::string_view::npos;
       first = at + from.size()) {
    out += text.substr(first, at - first);
    out += to;
  }
  return out += text.substr(first);
}

}  // namespace floe::eval
