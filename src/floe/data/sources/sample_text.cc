#include "floe/data/sources/sample_text.h"

#include "floe/core/error.h"
#include "floe/data/sample.h"

namespace floe::data {

void laion_labels(std::span<const std::int32_t> ids, const token::FlamingoTokens& tokens,
                  std::span<std::int32_t> labels) {
  require(ids.size() == labels.size(), "labels need one place per id");
  for (std::size_t i = 0; i < ids.size(); ++i)
    labels[i] = ids[i] == tokens.pad || ids[i] == tokens.image ? kNoLabel : ids[i];
}

void mmc4_labels(std::span<const std::int32_t> ids, const token::FlamingoTokens& tokens,
                 std::span<std::int32_t> labels) {
  require(ids.size() == labels.size(), "labels need one place per id");
  bool learns = false;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    learns = learns || ids[i] == tokens.image;
    labels[i] = learns && ids[i] != tokens.pad && ids[i] != tokens.image ? ids[i] : kNoLabel;
    learns = learns && ids[i] != tokens.endofchunk;
  }
}

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

std::int32_t eos_id(const token::Tokenizer& tokenizer, std::string_view block) {
  require<ConfigError>(tokenizer.eos_id().has_value(), block,
                       ": the tokenizer has no EOS token to end documents with; name one in its "
                       "tokenizer_config.json");
  return *tokenizer.eos_id();
}

}  // namespace floe::data
