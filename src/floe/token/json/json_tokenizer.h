// The tokenizer that tokenizer.json describes: added tokens, normaliser, pre-tokenizer, byte-pair
// model, post-processor and decoder, one after the other.
#pragma once

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/token/bpe/bpe.h"
#include "floe/token/json/added_tokens.h"
#include "floe/token/json/parts.h"
#include "floe/token/tokenizer.h"
#include "floe/token/tokenizer_config.h"

namespace floe::token {

// Objects that one thread at a time may use, kept for whoever comes next: as many as there were
// threads at once.
template <class Scratch>
class ScratchPool {
 public:
  // Gives the object back at the end of its life.
  class Lease {
   public:
    Lease(ScratchPool& pool, std::unique_ptr<Scratch> scratch)
        : pool_(pool), scratch_(std::move(scratch)) {}
    ~Lease() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(scratch_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() { return *scratch_; }
    Scratch* operator->() { return scratch_.get(); }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

  // Thread-safe.
  Lease take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto scratch = std::move(free_.back());
        free_.pop_back();
        return Lease(*this, std::move(scratch));
      }
    }
    return Lease(*this, std::make_unique<Scratch>());
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

class JsonTokenizer : public Tokenizer {
 public:
  // `document` is the parsed file `path`. Throws DataError for a broken one, ConfigError for what
  // floe does not support.
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
