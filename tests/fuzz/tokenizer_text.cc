// Any bytes as text for tokenizers of every family: refused when they are no UTF-8; otherwise
// byte-level tokenizers give the text back, and the matchers written by hand agree with PCRE2.
#include <cstdint>
#include <cstdlib>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/token/regex/regex.h"
#include "floe/token/unicode/unicode.h"
#include "tests/token/sample_tokenizers.h"

namespace {

using nlohmann::json;

constexpr const char* kLlama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// A few merges, so that words of any length meet both ways of joining.
json with_merges() {
  json document = floe::test::bytes();
  json& model = document["model"];
  for (const char* merge : {"a a", "aa aa", "Ġ a", "aa a", "Ã ©", "Ġ Ġ", "ĠĠ ĠĠ"}) {
    const std::string text = merge;
    const std::size_t space = text.find(' ');
    model["vocab"][text.substr(0, space) + text.substr(space + 1)] = model["vocab"].size();
    model["merges"].push_back(merge);
  }
  document["added_tokens"] = {{{"content", "<image>"}, {"special", true}},
                              {{"content", "  "}, {"normalized", true}}};
  return document;
}

json llama() {
  json document = floe::test::letters();
  document["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Prepend"}, {"prepend", "▁"}},
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}},
        {{"type", "NFKC"}}}}};
  document["model"]["fuse_unk"] = true;
  return document;
}

void require_same(const floe::token::Pattern& a, const floe::token::Pattern& b,
                  std::string_view text) {
  floe::token::Pattern::Match x{}, y{};
  for (std::size_t from = 0;; from = x.end) {
    const bool found = a.find(text, from, x);
    if (found != b.find(text, from, y)) std::abort();
    if (!found) return;
    if (x.begin != y.begin || x.end != y.end || x.begin >= x.end) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace floe;
  static const auto byte_level = test::make(with_merges());
  static const auto characters = test::make(llama());
  static const auto gpt2 = token::make_regex(token::kGpt2Expression, "fuzz");
  static const auto gpt2_regex =
      token::make_regex(std::string("(?:") + token::kGpt2Expression + ")", "fuzz");
  static const auto llama3 = token::make_regex(kLlama3, "fuzz");
  static const auto llama3_regex = token::make_regex(std::string("(?:") + kLlama3 + ")", "fuzz");

  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const bool valid = find_invalid_utf8(text) == std::string_view::npos;
  try {
    if (byte_level.decode(byte_level.encode(text)) != text || !valid) std::abort();
    characters.decode(characters.encode(text));
  } catch (const DataError&) {
    if (valid) std::abort();
    if (find_invalid_utf8(replace_invalid_utf8(text)) != std::string::npos) std::abort();
    return 0;
  }
  require_same(*gpt2, *gpt2_regex, text);
  require_same(*llama3, *llama3_regex, text);
  for (const auto form : {token::NormalForm::nfc, token::NormalForm::nfd, token::NormalForm::nfkc,
                          token::NormalForm::nfkd}) {
    std::string once, twice;
    if (!token::normalize(text, form, once)) continue;
    if (token::normalize(once, form, twice) && once != twice) std::abort();
  }
  return 0;
}
