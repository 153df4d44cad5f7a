#define PCRE2_CODE_UNIT_WIDTH 8
#include "floe/token/regex/regex.h"

#include <pcre2.h>

#include "floe/core/error.h"
#include "floe/io/file/json_text.h"

namespace floe::token {
namespace {

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* thing) const {
    Free(thing);
  }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

std::string error_text(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// What a match needs to write to; one set per thread serves every expression.
struct Workspace {
  static constexpr std::size_t kLeastStack = 32 << 10, kMostStack = 4 << 20;
  static constexpr std::uint32_t kMostSteps = 50'000'000, kMostHeapKib = 64 << 10;

  MatchData data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  JitStack stack{pcre2_jit_stack_create(kLeastStack, kMostStack, nullptr)};

  Workspace() {
    require(data && context && stack, "no memory for matching regular expressions");
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    pcre2_set_match_limit(context.get(), kMostSteps);
    pcre2_set_heap_limit(context.get(), kMostHeapKib);
  }
};

class RegexPattern : public Pattern {
 public:
  RegexPattern(const std::string& expression, const std::string& where) : expression_(expression) {
    const std::string translated = to_pcre2(expression, where);
    int error = 0;
    PCRE2_SIZE place = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF, &error, &place, nullptr));
    require<ConfigError>(code_ != nullptr, where, ": the regular expression ", quoted(expression),
                         " does not compile: ", error_text(error));
    std::uint32_t matches_nothing = 0;
    pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &matches_nothing);
    require<ConfigError>(!matches_nothing, where, ": the regular expression ", quoted(expression),
                         " may match nothing, which floe does not support");
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without it, matching is only slower
  }

  bool find(std::string_view text, std::size_t from, Match& match) const override {
    thread_local Workspace workspace;
    int found = run(text, from, workspace, PCRE2_NO_UTF_CHECK);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = run(text, from, workspace, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) return false;
    require<DataError>(found >= 0, "the regular expression ", quoted(expression_),
                       " gave up on a text of ", text.size(), " bytes: ", error_text(found));
    const PCRE2_SIZE* places = pcre2_get_ovector_pointer(workspace.data.get());
    match = {places[0], places[1]};
    return true;
  }

 private:
  int run(std::string_view text, std::size_t from, Workspace& workspace,
          std::uint32_t options) const {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       options, workspace.data.get(), workspace.context.get());
  }

  std::string expression_;
  Code code_;
};

class LiteralPattern : public Pattern {
 public:
  explicit LiteralPattern(std::string text) : text_(std::move(text)) {}

  bool find(std::string_view text, std::size_t from, Match& match) const override {
    const std::size_t begin = text.find(text_, from);
    if (begin == std::string_view::npos) return false;
    match = {begin, begin + text_.size()};
    return true;
  }

 private:
  std::string text_;
};

}  // namespace

std::unique_ptr<Pattern> make_literal(std::string text) {
  return std::make_unique<LiteralPattern>(std::move(text));
}

std::unique_ptr<Pattern> make_regex(const std::string& expression, const std::string& where) {
  if (auto known = known_pattern(expression)) return known;
  return std::make_unique<RegexPattern>(expression, where);
}

std::unique_ptr<Pattern> read_pattern(const nlohmann::json& pattern, const std::string& where) {
  const bool one = pattern.is_object() && pattern.size() == 1 && pattern.begin()->is_string();
  const std::string kind = one ? pattern.begin().key() : "";
  require<DataError>(kind == "String" || kind == "Regex", where,
                     ": the pattern must be {\"String\": ...} or {\"Regex\": ...}, not ",
                     shown(pattern));
  const auto text = pattern.begin()->get<std::string>();
  require<ConfigError>(!text.empty(), where, ": the pattern is empty");
  return kind == "String" ? make_literal(text) : make_regex(text, where);
}

}  // namespace floe::token
