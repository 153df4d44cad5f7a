// LLaMA's tokenizer from a SentencePiece model, as transformers' (slow) LlamaTokenizer gives it.
#pragma once

#include <memory>
#include <string>

#include "floe/token/tokenizer.h"
#include "floe/token/tokenizer_config.h"

namespace floe::token {

// Throws DataError for a broken model, ConfigError for a class other than LlamaTokenizer.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path,
                                              const TokenizerConfig& config);

}  // namespace floe::token
