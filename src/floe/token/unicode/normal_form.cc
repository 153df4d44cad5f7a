#include <utf8proc.h>

#include <cstdint>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/token/unicode/unicode.h"

namespace floe::token {
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
