// The tokenizer that tokenizer.json describes: added tokens, normaliser, pre-tokenizer, byte-pair model,
// post-processor and decoder, one after the other.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "floe/token/added_tokens.h"
#include "floe/token/bpe.h"
#include "floe/token/decoder.h"
#include "floe/token/normalizer.h"
#include "floe/token/post_processor.h"
#include "floe/token/pre_tokenizer.h"
#include "floe/token/scratch_pool.h"
#include "floe/token/tokenizer.h"
#include "floe/token/tokenizer_config.h"

namespace floe::token {

class JsonTokenizer : public Tokenizer {
 public:
  // `document` is the parsed file `path`. Throws DataError for a broken one, ConfigError for what floe
  // does not support.
  JsonTokenizer(const nlohmann::json& document, const TokenizerConfig& config,
                const std::string& path);

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids,
              bool add_special = true) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const override;
  std::int32_t id_of(std::string_view token) const override;
  std::string token_of(std::int32_t id) const override;
  std::int64_t size() const override { return model_.size() + added_.num_new(model_); }
  std::int64_t add_special_tokens(const std::vector<std::string>& tokens) override;
  std::string describe() const override;

 private:
  struct Scratch {
    Draft draft;
    Pieces pieces;
    BpeScratch bpe;
  };

  void add_configured_tokens(const nlohmann::json& document, const TokenizerConfig& config);
  void set_template(const TokenizerConfig& config, const std::string& path);
  void encode_text(std::string_view text, bool at_start, std::vector<std::int32_t>& ids,
                   Scratch& scratch) const;
  void encode_piece(std::string_view text, bool at_start, std::vector<std::int32_t>& ids,
                    Scratch& scratch) const;

  std::unique_ptr<Normalizer> normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe model_;
  PostProcessor post_processor_;
  std::unique_ptr<Decoder> decoder_;
  AddedTokens added_;
  bool clean_up_spaces_;
  mutable ScratchPool<Scratch> scratch_;
};

}  // namespace floe::token
