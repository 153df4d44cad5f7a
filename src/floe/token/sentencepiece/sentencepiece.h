// SentencePiece models, and the tokenizer that LLaMA has with one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "floe/token/tokenizer.h"
#include "floe/token/tokenizer_config.h"

namespace floe::token {

enum class PieceType { normal = 1, unknown, control, user_defined, unused, byte };

struct SentencePieceInfo {
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::normal;
  };
  enum class Model { unigram = 1, bpe, word, character };

  std::vector<Piece> pieces;
  Model model = Model::unigram;
  bool byte_fallback = false;
  bool has_normalisation = false;  // a table of characters, such as nmt_nfkc's
};

// A look at a model file before the library loads it. The library trusts its file: a table for
// normalising text is walked without bounds, and some odd vocabularies end the process. So the file
// is read here first, and what a trainer would not write is refused: throws DataError, naming the
// file.
SentencePieceInfo check_sentencepiece(std::string_view bytes, const std::string& path);

// LLaMA's tokenizer from a SentencePiece model, as transformers' (slow) LlamaTokenizer gives it.
// Throws DataError for a broken model, ConfigError for a class other than LlamaTokenizer.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path,
                                              const TokenizerConfig& config);

}  // namespace floe::token
