#include "floe/token/tokenizer.h"

#include "floe/core/error.h"
#include "floe/io/json_text.h"

namespace floe::token {

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<std::int32_t> ids;
  encode(text, ids, add_special);
  return ids;
}

std::optional<std::int32_t> Tokenizer::id_of_role(const std::optional<std::string>& token) const {
  if (!token) return std::nullopt;
  const std::int32_t id = id_of(*token);
  return id < 0 ? std::nullopt : std::optional(id);
}

void Tokenizer::set_pad(const std::string& token) {
  add_special_tokens({token});
  pad_ = token;
}

std::string Tokenizer::describe_tokens() const {
  std::string text = str("size: ", size(), " with the added tokens\n");
  const auto line = [&](const char* role, const std::optional<std::string>& token) {
    const auto id = id_of_role(token);
    text += str(role, ": ", token ? quoted(*token) : "none", id ? str(" ", *id) : "", "\n");
  };
  line("BOS", bos_);
  line("EOS", eos_);
  line("pad", pad_);
  line("unknown", unk_);
  return text;
}

std::string describe(const Tokenizer& tokenizer) { return tokenizer.describe(); }

FlamingoTokens add_flamingo_tokens(Tokenizer& tokenizer) {
  require<ConfigError>(
      tokenizer.eos_id().has_value(),
      "the tokenizer has no EOS token, which training needs at the end of every text; "
      "name one as \"eos_token\" in its tokenizer_config.json");
  tokenizer.add_special_tokens({"<|endofchunk|>", "<image>"});
  if (!tokenizer.pad()) tokenizer.set_pad("<PAD>");
  return {.image = tokenizer.id_of("<image>"),
          .endofchunk = tokenizer.id_of("<|endofchunk|>"),
          .pad = tokenizer.pad_id().value(),
          .eos = tokenizer.eos_id().value(),
          .size = tokenizer.size()};
}

}  // namespace floe::token
