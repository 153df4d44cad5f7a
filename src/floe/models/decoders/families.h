// The families of decoders, one function each; decoder_spec() picks by "model_type".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "floe/models/decoders/decoder_spec.h"

namespace floe::models {

// Reading a Hugging Face config.json: typed, with defaults, and with errors that name file and key.

class HfConfig {
 public:
  HfConfig(const nlohmann::json& values, std::string file, std::string prefix = "")
      : values_(values), file_(std::move(file)), prefix_(std::move(prefix)) {}

  // Null counts as missing, as in transformers. Without a default a missing key is an error.
  std::int64_t integer(const std::string& key) const;
  std::int64_t integer(const std::string& key, std::int64_t otherwise) const;
  // Of a square: a whole number, or a list of two equal ones.
  std::int64_t side(const std::string& key, std::int64_t otherwise) const;
  double number(const std::string& key, double otherwise) const;
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;
  bool has(const std::string& key) const;
  // Also when it is null.
  bool contains(const std::string& key) const;
  // Missing, null, or a table or list with nothing in it.
  bool empty(const std::string& key) const;
  bool is_text(const std::string& key) const;
  // A table inside; empty when it is missing.
  HfConfig section(const std::string& key) const;
  Activation activation(const std::string& key, const std::string& otherwise) const;

  // Throws ConfigError "FILE: 'KEY' is VALUE; floe computes only WHAT" unless `condition`.
  void only(bool condition, const std::string& key, const std::string& what) const;

 private:
  const nlohmann::json* find(const std::string& key) const;
  [[noreturn]] void wrong(const std::string& key, const std::string& wanted) const;

  nlohmann::json values_;
  std::string file_, prefix_;
};

// "rope_scaling" and "rope_theta" (or "rope_parameters", as newer files have them).
nn::RotarySpec rotary_from(const HfConfig& config, std::int64_t dim, double default_theta);

DecoderSpec opt_spec(const HfConfig& config);
DecoderSpec gpt_neox_spec(const HfConfig& config);
DecoderSpec mpt_spec(const HfConfig& config);
DecoderSpec mosaic_gpt_spec(const HfConfig& config);
DecoderSpec llama_spec(const HfConfig& config);
DecoderSpec mistral_spec(const HfConfig& config);
DecoderSpec qwen2_spec(const HfConfig& config);

}  // namespace floe::models
