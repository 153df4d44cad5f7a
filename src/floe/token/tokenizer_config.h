// What a Hugging Face folder says around the vocabulary: tokenizer_config.json,
// special_tokens_map.json and added_tokens.json, read as transformers' from_pretrained reads them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "floe/token/json/added_tokens.h"

namespace floe::token {

struct TokenizerConfig {
  // "GPT2Tokenizer", "LlamaTokenizer", without "Fast"; "PreTrainedTokenizer" where nothing is
  // named.
  std::string class_name;
  // "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token".
  std::map<std::string, AddedToken> roles;
  std::vector<AddedToken> additional;  // more special tokens
  // Tokens to add (or whose flags to set), by the id they had when the folder was written.
  std::map<std::int64_t, AddedToken> added;
  bool legacy_added = false;  // `added` is not from tokenizer_config.json
  std::optional<bool> add_prefix_space, add_bos_token, add_eos_token, legacy;
  bool clean_up_spaces = false;

  // The special tokens in transformers' order, each once.
  std::vector<AddedToken> special_tokens() const;
  std::optional<std::string> role(const char* name) const;
};

// Which file holds the vocabulary decides what a missing class name means.
enum class VocabularyKind { json, sentencepiece, gpt2 };

// Reads what there is; every file may be missing. Throws ConfigError for classes and settings that
// floe does not support.
TokenizerConfig read_tokenizer_config(const std::string& folder, VocabularyKind kind);

// transformers' repair of spaces in decoded English, for tokenizers whose configuration asks for it
// ("clean_up_tokenization_spaces"): "Hello , I 'm here ." becomes "Hello, I'm here."
std::string clean_up_spaces(std::string text);

}  // namespace floe::token
