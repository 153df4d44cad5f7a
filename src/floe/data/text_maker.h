// Plain text: documents as lines of JSON ({"text": "…"}) or as .txt files in tars.
#pragma once

#include <memory>
#include <string>

#include "floe/data/sample.h"
#include "floe/data/stream_reader.h"
#include "floe/token/tokenizer.h"

namespace floe::data {

// A document without a character.
inline constexpr std::string_view kEmptyText = "empty_text";

// A file whose name has `.jsonl` or `.ndjson` in it, compressed or not: every line that is not blank
// is a member `<line>.jsonl`. Anything else is a tar. Pipes as in TarReader.
std::unique_ptr<MemberSource> open_text(const std::string& where);

// Tokens as the tokenizer gives them for the text alone (BOS included, if it adds one), then EOS. Every
// token has a label.
class TextMaker : public SampleMaker {
 public:
  // Keeps a reference. Throws ConfigError when the tokenizer has no EOS token.
  explicit TextMaker(const token::Tokenizer& tokenizer);
  Outcome make(const RawSample& raw) const override;

 private:
  const token::Tokenizer& tokenizer_;
  std::int32_t eos_;
};

}  // namespace floe::data
