// Reading a Hugging Face config.json: typed, with defaults, and with errors that name file and key.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace floe::models {

// The nonlinearities that such files name.
enum class Activation { relu, gelu, gelu_tanh, quick_gelu, silu };

at::Tensor activate(const at::Tensor& x, Activation kind);

class HfConfig {
 public:
  HfConfig(const nlohmann::json& values, std::string file, std::string prefix = "")
      : values_(values), file_(std::move(file)), prefix_(std::move(prefix)) {}

  const std::string& file() const { return file_; }

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
  // Of a list; a list with anything else in it is an error.
  std::vector<std::string> texts(const std::string& key) const;
  std::vector<double> numbers(const std::string& key) const;
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

}  // namespace floe::models
