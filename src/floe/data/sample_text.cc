#include "floe/data/sample_text.h"

#include "floe/core/error.h"
#include "floe/data/drop.h"
#include "floe/data/unicode.h"

namespace floe::data {

std::string without_marks(std::string_view text) {
  // One pass: a mark is taken out as soon as it is complete, so what closes up behind it is seen.
  std::string out;
  for (const char c : text) {
    out += c;
    if (c != '>') continue;
    for (const std::string_view mark : {kImageMark, kEndOfChunkMark})
      if (out.ends_with(mark)) out.resize(out.size() - mark.size());
  }
  return out;
}

std::vector<std::int32_t> cut_ids(const token::Tokenizer& tokenizer, std::string_view text,
                                  std::int64_t max_tokens) {
  auto ids = or_drop(reason::kBadText, [&] { return tokenizer.encode(text); });
  if (ids.size() > static_cast<std::size_t>(max_tokens))
    ids.resize(static_cast<std::size_t>(max_tokens));
  return ids;
}

std::string eos_text(const token::Tokenizer& tokenizer) {
  require<ConfigError>(tokenizer.eos().has_value(),
                       "the tokenizer names no eos_token, which every sample ends with; add it to "
                       "its tokenizer_config.json");
  return *tokenizer.eos();
}

}  // namespace floe::data
