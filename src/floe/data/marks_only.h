// In place of a tokenizer when none is given: only the marks and the end become ids, one each. The rules
// of samples then apply as far as they do not hang on the length of texts.
#pragma once

#include "floe/token/tokenizer.h"

namespace floe::data {

class MarksOnly : public token::Tokenizer {
 public:
  MarksOnly();

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids,
              bool add_special = true) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const override;
  std::int32_t id_of(std::string_view token) const override;
  std::string token_of(std::int32_t id) const override;
  std::int64_t size() const override;
  std::int64_t add_special_tokens(const std::vector<std::string>& tokens) override;
  std::string describe() const override;

  static token::FlamingoTokens tokens();
};

}  // namespace floe::data
