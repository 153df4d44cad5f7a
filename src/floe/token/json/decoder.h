// How tokens become text again.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace floe::token {

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // In words, for `floe inspect`.
  virtual std::string describe() const = 0;
};

// The "decoder" of tokenizer.json; a null pointer for null. Throws ConfigError for kinds that floe does
// not support.
std::unique_ptr<Decoder> read_decoder(const nlohmann::json& decoder, const std::string& where);

}  // namespace floe::token
