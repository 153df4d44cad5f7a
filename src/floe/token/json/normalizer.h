// What is done to text before it is cut: normal forms, replacements, prefixes.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace floe::token {

// A text on its way through normalisers. Most leave most texts alone, so it is copied only when
// something changes, into buffers that are kept.
class Draft {
 public:
  // `at_start`: the text begins where the whole input begins. The text must outlive the draft's use.
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

// The "normalizer" of tokenizer.json; a null pointer for null. Throws ConfigError for kinds that floe
// does not support.
std::unique_ptr<Normalizer> read_normalizer(const nlohmann::json& normalizer,
                                            const std::string& where);

}  // namespace floe::token
