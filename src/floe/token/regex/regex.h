// Patterns that cut or replace text, with the matches that the `tokenizers` package finds.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace floe::token {

// Threads: find may run on any number of threads.
class Pattern {
 public:
  virtual ~Pattern() = default;

  struct Match {
    std::size_t begin, end;  // never empty
  };
  // The first match at or behind `from`; false when there is none. The text is UTF-8.
  virtual bool find(std::string_view text, std::size_t from, Match& match) const = 0;
};

// Every occurrence of a text.
std::unique_ptr<Pattern> make_literal(std::string text);

// A regular expression in Oniguruma's language. The expressions of GPT-2, Llama 3 and Qwen2 have
// matchers of their own; others go through PCRE2 when they keep to the part of the language that
// means the same there. Throws ConfigError, beginning with `where`, for anything else.
std::unique_ptr<Pattern> make_regex(const std::string& expression, const std::string& where);

// {"String": "..."} or {"Regex": "..."}, as tokenizer.json writes them.
std::unique_ptr<Pattern> read_pattern(const nlohmann::json& pattern, const std::string& where);

// What the ByteLevel pre-tokenizer cuts by.
extern const char* const kGpt2Expression;

// The matcher written by hand for an expression that nearly all tokenizers use, or null when it is
// none of these.
std::unique_ptr<Pattern> known_pattern(const std::string& expression);

// Oniguruma's regular expressions, as far as PCRE2 can stand in for them.
//
// The two languages differ in what `$`, `\h`, `\w`, `{1,2}+` or `(?i)` mean, and every build of
// either has its own Unicode tables. So an expression is read here, every class of characters is
// spelled out from floe's table, and what could mean something else is refused.
//
// The expression for PCRE2 in UTF mode. Throws ConfigError, beginning with `where`, for constructs
// outside the common part.
std::string to_pcre2(const std::string& expression, const std::string& where);

}  // namespace floe::token
