#include "floe/token/unicode/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "floe/core/error.h"
#include "floe/token/unicode/char_class.h"

namespace floe::token {

namespace {

// What begins at `at`: the number of bytes, and whether they are one whole character. Bytes of a
// broken one are those that could still have become a character.
struct Sequence {
  std::size_t bytes;
  bool whole;
};

Sequence sequence_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {1, true};
  std::size_t length = 0;
  unsigned char low = 0x80, high = 0xbf;  // bounds of the second byte
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;   // no longer form than needed
    if (first == 0xed) high = 0x9f;  // no surrogates
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;  // not beyond U+10FFFF
  } else {
    return {1, false};
  }
  for (std::size_t i = 1; i < length; ++i, low = 0x80, high = 0xbf)
    if (at + i == text.size() || byte(at + i) < low || byte(at + i) > high) return {i, false};
  return {length, true};
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    // Eight ASCII bytes at once.
    if (at + 8 <= text.size()) {
      std::uint64_t word;
      std::memcpy(&word, text.data() + at, 8);
      if (!(word & 0x8080808080808080ULL)) {
        at += 8;
        continue;
      }
    }
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.whole) return at;
    at += sequence.bytes;
  }
  return std::string_view::npos;
}

void require_utf8(std::string_view text, std::string_view what) {
  const std::size_t bad = find_invalid_utf8(text);
  require<DataError>(bad == std::string_view::npos, what, " is not UTF-8: byte ", bad, " of ",
                     text.size(), " starts no character");
}

void append_utf8(std::string& text, char32_t c) {
  const auto push = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xc0 | c >> 6);
    push(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    push(0xe0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3f));
    push(0x80 | (c & 0x3f));
  } else {
    push(0xf0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3f));
    push(0x80 | (c >> 6 & 0x3f));
    push(0x80 | (c & 0x3f));
  }
}

std::string to_utf8(char32_t c) {
  std::string text;
  append_utf8(text, c);
  return text;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const Sequence sequence = sequence_at(bytes, at);
    if (sequence.whole)
      text.append(bytes, at, sequence.bytes);
    else
      text.append("\xef\xbf\xbd");
    at += sequence.bytes;
  }
  return text;
}

namespace {

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

// Whether the library may see the character in front of those that could join it. One that is younger
// than the package's tables stands still there, while the library would take it apart or, if it is a mark,
// sort it among its neighbours.
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
