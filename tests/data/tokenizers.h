// The tokenizers of tests/goldens/data, with OpenFlamingo's tokens.
#pragma once

#include <memory>
#include <string>

#include "floe/token/tokenizer.h"
#include "tests/data/goldens.h"

namespace floe::data {

struct GoldenTokenizer {
  // neox, opt or llama
  explicit GoldenTokenizer(const std::string& name)
      : tokenizer(token::load_tokenizer(goldens_folder() + "tokenizers/" + name)),
        tokens(token::add_flamingo_tokens(*tokenizer)) {}

  std::unique_ptr<token::Tokenizer> tokenizer;
  token::FlamingoTokens tokens;
};

}  // namespace floe::data
