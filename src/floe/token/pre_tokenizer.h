// How text is cut into words, each of which the model encodes on its own.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "floe/token/pieces.h"

namespace floe::token {

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
