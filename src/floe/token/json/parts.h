// The parts of tokenizer.json, in the order in which a text passes them: normaliser, pre-tokenizer,
// (model), post-processor; and the decoder, for the way back. Each is read from its block of the
// file, and throws ConfigError for kinds that floe does not support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace floe::token {

// ---- what is done to text before it is cut: normal forms, replacements, prefixes ----

// A text on its way through normalisers. Most leave most texts alone, so it is copied only when
// something changes, into buffers that are kept.
class Draft {
 public:
  // `at_start`: the text begins where the whole input begins. The text must outlive the draft's
  // use.
  void begin(std::string_view text, bool at_start) {
    text_ = text;
    at_start_ = at_start;
  }

  std::string_view text() const { return text_; }
  // Whether the first character (still) stands for the first of the input: Metaspace asks.
  bool at_start() const { return at_start_; }
  void lose_start() { at_start_ = false; }

  // An empty buffer to write the next version to; replace() puts it in the place of the text.
  std::string& next() {
    buffers_[other_].clear();
    return buffers_[other_];
  }
  void replace() {
    text_ = buffers_[other_];
    other_ ^= 1;
  }
  // Keeps only a part of the text.
  void narrow(std::size_t begin, std::size_t end) { text_ = text_.substr(begin, end - begin); }

 private:
  std::string_view text_;
  bool at_start_ = false;
  std::string buffers_[2];
  int other_ = 0;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(Draft& draft) const = 0;
  // In words, for `floe inspect`.
  virtual std::string describe() const = 0;
};

// The "normalizer" of tokenizer.json; a null pointer for null.
std::unique_ptr<Normalizer> read_normalizer(const nlohmann::json& normalizer,
                                            const std::string& where);

// ---- how text is cut into words, each of which the model encodes on its own ----

// The pieces of a text while it is cut into words.
class Pieces {
 public:
  // One piece; `at_start`: it begins where the whole input begins. The text must outlive the
  // pieces.
  void begin(std::string_view text, bool at_start) {
    now_.assign(1, text);
    num_texts_ = 0;
    at_start_ = at_start;
  }

  const std::vector<std::string_view>& all() const { return now_; }
  bool at_start() const { return at_start_; }

  // Calls cut(piece) for each; what it adds are the pieces from then on.
  template <class Cut>
  void cut_each(const Cut& cut) {
    next_.clear();
    for (const std::string_view piece : now_) cut(piece);
    now_.swap(next_);
  }
  // Empty pieces disappear.
  void add(std::string_view piece) {
    if (!piece.empty()) next_.push_back(piece);
  }
  // A buffer for text that is not a part of the input, empty; it lives until the next begin().
  std::string& new_text() {
    if (num_texts_ == texts_.size()) texts_.emplace_back();
    texts_[num_texts_].clear();
    return texts_[num_texts_++];
  }

 private:
  std::vector<std::string_view> now_, next_;
  std::deque<std::string> texts_;
  std::size_t num_texts_ = 0;
  bool at_start_ = false;
};

class CutStep {
 public:
  virtual ~CutStep() = default;
  virtual void apply(Pieces& pieces) const = 0;
  // In words, for `floe inspect`.
  virtual std::string describe() const = 0;
};

// The "pre_tokenizer" of tokenizer.json; none for null.
class PreTokenizer {
 public:
  // `add_prefix_space` overrides the field of a ByteLevel that stands alone, as transformers does
  // with the value in tokenizer_config.json.
  PreTokenizer(const nlohmann::json& pre_tokenizer, std::optional<bool> add_prefix_space,
               const std::string& where);

  // True when the words are bytes that the vocabulary writes in GPT-2's byte alphabet.
  bool gives_bytes() const { return gives_bytes_; }
  void apply(Pieces& pieces) const {
    for (const auto& step : steps_) step->apply(pieces);
  }
  std::string describe() const;

 private:
  void read(const nlohmann::json& step, std::optional<bool> add_prefix_space,
            const std::string& where, bool is_last);

  std::vector<std::unique_ptr<CutStep>> steps_;
  bool gives_bytes_ = false;
};

// ---- the tokens that the tokenizer itself puts around every text ----

struct PostProcessor {
  std::vector<std::int32_t> before, after;

  // In words; `name` gives the text of an id.
  template <class Name>
  std::string describe(const Name& name) const {
    std::string text;
    for (const std::int32_t id : before) text += name(id) + " ";
    text += "text";
    for (const std::int32_t id : after) text += " " + name(id);
    return text;
  }
};

// The "post_processor" of tokenizer.json; nothing for null.
PostProcessor read_post_processor(const nlohmann::json& post_processor, const std::string& where);

// ---- how tokens become text again ----

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // In words, for `floe inspect`.
  virtual std::string describe() const = 0;
};

// The "decoder" of tokenizer.json; a null pointer for null.
std::unique_ptr<Decoder> read_decoder(const nlohmann::json& decoder, const std::string& where);

}  // namespace floe::token
