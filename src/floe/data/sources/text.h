// Plain text for a causal language model: documents as lines of JSON ({"text": "…"}) or as .txt
// files in tars.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "floe/data/sample.h"
#include "floe/token/tokenizer.h"

namespace floe::config {
template <class T>
class Schema;
}

namespace floe::data {

struct TextConfig {
  std::string files;           // written like `shards`: .jsonl (also compressed) or tars of .txt
  std::int64_t tokens = 4096;  // of a batch
  double weight = 1.0;         // of its loss
  std::optional<std::int64_t> num_tokens;  // in an epoch, over all ranks; null: no end
};
void describe(config::Schema<TextConfig>& s);

// Tokens as the tokenizer gives them for the text alone (BOS included, if it adds one), then EOS.
// Every token has a label.
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
