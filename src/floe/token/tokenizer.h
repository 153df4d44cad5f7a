// Text to token ids and back, with the ids that Hugging Face's `transformers` gives for the same
// folder.
//
//   auto tokenizer = token::load_tokenizer("opt-1.3b");
//   const auto marks = token::add_flamingo_tokens(*tokenizer);
//   tokenizer->encode("<image>A caption.<|endofchunk|></s>");
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace floe::token {

// Threads: encode, decode and the look-ups may run at once on any number of threads;
// add_special_tokens must not run beside anything else.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // As `tokenizer(text)["input_ids"]`: special tokens are found anywhere in the text; the
  // post-processor's tokens (such as BOS) are added with `add_special`.
  // Throws DataError for text that is not UTF-8.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special = true) const;
  // The same, appended to `ids`; for loops that keep their vector.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids,
                      bool add_special = true) const = 0;

  // As `tokenizer.decode(ids, skip_special_tokens=skip_special)`: bytes that are not UTF-8 become
  // U+FFFD, and ids that the vocabulary does not have are left out.
  virtual std::string decode(std::span<const std::int32_t> ids,
                             bool skip_special = false) const = 0;

  // -1 if there is no such token.
  virtual std::int32_t id_of(std::string_view token) const = 0;
  // As the vocabulary writes it (`Ġthe`, `▁the`, `<0x0A>`); throws DataError for an unknown id.
  virtual std::string token_of(std::int32_t id) const = 0;
  // As `len(tokenizer)`: the vocabulary with the added tokens.
  virtual std::int64_t size() const = 0;

  // Tokens with a role; nullopt where the folder names none.
  const std::optional<std::string>& bos() const { return bos_; }
  const std::optional<std::string>& eos() const { return eos_; }
  const std::optional<std::string>& pad() const { return pad_; }
  const std::optional<std::string>& unk() const { return unk_; }
  std::optional<std::int32_t> bos_id() const { return id_of_role(bos_); }
  std::optional<std::int32_t> eos_id() const { return id_of_role(eos_); }
  std::optional<std::int32_t> pad_id() const { return id_of_role(pad_); }

  // Puts special tokens at the end of the vocabulary as transformers' add_special_tokens does;
  // those that it has already keep their ids and become special. Returns the new size().
  virtual std::int64_t add_special_tokens(const std::vector<std::string>& tokens) = 0;
  // As `add_special_tokens({"pad_token": token})`.
  void set_pad(const std::string& token);

  // In words, one line per part: kind, size, special tokens, normaliser, pre-tokenizer and so on.
  virtual std::string describe() const = 0;

 protected:
  // The lines of describe() on the size and on the tokens with a role.
  std::string describe_tokens() const;

  std::optional<std::string> bos_, eos_, pad_, unk_;

 private:
  std::optional<std::int32_t> id_of_role(const std::optional<std::string>& token) const;
};

// A Hugging Face folder or one vocabulary file in it: `tokenizer.json`, SentencePiece's
// `tokenizer.model`, or GPT-2's `vocab.json` (with `merges.txt` beside it); in a folder the first
// of these that exists. `tokenizer_config.json` and `special_tokens_map.json` beside the file are
// read as well. Throws DataError for broken files and ConfigError, naming the component, for what
// floe does not support.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

// describe() of a tokenizer, for `floe inspect`.
std::string describe(const Tokenizer& tokenizer);

// The tokens that OpenFlamingo's training needs, and the number of rows its embedding gets.
struct FlamingoTokens {
  std::int32_t image = -1, endofchunk = -1, pad = -1, eos = -1;
  std::int64_t size = 0;
};

// What OpenFlamingo does at start: adds `<|endofchunk|>` and `<image>`, and `<PAD>` when the
// tokenizer has no pad token. Throws ConfigError when it has no EOS token.
FlamingoTokens add_flamingo_tokens(Tokenizer& tokenizer);

}  // namespace floe::token
