// How text is cut into words, each of which the model encodes on its own.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace floe::token {

// The pieces of a text while it is cut into words.

class Pieces {
 public:
  // One piece; `at_start`: it begins where the whole input begins. The text must outlive the pieces.
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
  // `add_prefix_space` overrides the field of a ByteLevel that stands alone, as transformers does with
  // the value in tokenizer_config.json. Throws ConfigError for kinds that floe does not support.
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

}  // namespace floe::token
