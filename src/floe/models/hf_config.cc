#include "floe/models/hf_config.h"

#include <ATen/ATen.h>

#include <map>

#include "floe/core/error.h"
#include "floe/nn/fused.h"

namespace floe::models {

at::Tensor activate(const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::relu: return at::relu(x);
    case Activation::gelu: return nn::gelu(x);
    case Activation::gelu_tanh: return at::gelu(x, "tanh");
    case Activation::quick_gelu: return nn::quick_gelu(x);
    case Activation::silu: return at::silu(x);
  }
  return x;
}

const nlohmann::json* HfConfig::find(const std::string& key) const {
  if (!values_.is_object()) return nullptr;
  const auto found = values_.find(key);
  return found == values_.end() || found->is_null() ? nullptr : &*found;
}

void HfConfig::wrong(const std::string& key, const std::string& wanted) const {
  const nlohmann::json* value = find(key);
  throw ConfigError(
      value ? str(file_, ": '", prefix_, key, "' is ", value->dump(), ", expected ", wanted)
            : str(file_, ": '", prefix_, key, "' is missing, expected ", wanted));
}

bool HfConfig::has(const std::string& key) const { return find(key) != nullptr; }
bool HfConfig::contains(const std::string& key) const {
  return values_.is_object() && values_.contains(key);
}
bool HfConfig::empty(const std::string& key) const {
  const nlohmann::json* value = find(key);
  return !value || (value->is_structured() && value->empty());
}
bool HfConfig::is_text(const std::string& key) const { return has(key) && find(key)->is_string(); }

std::int64_t HfConfig::integer(const std::string& key) const {
  const nlohmann::json* value = find(key);
  if (!value || !value->is_number_integer() || value->get<std::int64_t>() < 0 ||
      value->get<std::int64_t>() > (std::int64_t{1} << 40))
    wrong(key, "a whole number");
  return value->get<std::int64_t>();
}

std::int64_t HfConfig::integer(const std::string& key, std::int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}

std::int64_t HfConfig::side(const std::string& key, std::int64_t otherwise) const {
  const nlohmann::json* value = find(key);
  if (!value || !value->is_array()) return integer(key, otherwise);
  only(value->size() == 2 && (*value)[0] == (*value)[1], key, "a square");
  return HfConfig({{key, (*value)[0]}}, file_, prefix_).integer(key);
}

double HfConfig::number(const std::string& key, double otherwise) const {
  const nlohmann::json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_number()) wrong(key, "a number");
  return value->get<double>();
}

bool HfConfig::flag(const std::string& key, bool otherwise) const {
  const nlohmann::json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

std::string HfConfig::text(const std::string& key, const std::string& otherwise) const {
  const nlohmann::json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_string()) wrong(key, "text");
  return value->get<std::string>();
}

std::vector<std::string> HfConfig::texts(const std::string& key) const {
  std::vector<std::string> texts;
  if (!has(key)) return texts;
  if (!find(key)->is_array()) wrong(key, "a list of texts");
  for (const nlohmann::json& item : *find(key)) {
    if (!item.is_string()) wrong(key, "a list of texts");
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::vector<double> HfConfig::numbers(const std::string& key) const {
  std::vector<double> numbers;
  if (!has(key)) return numbers;
  if (!find(key)->is_array()) wrong(key, "a list of numbers");
  for (const nlohmann::json& item : *find(key)) {
    if (!item.is_number()) wrong(key, "a list of numbers");
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

HfConfig HfConfig::section(const std::string& key) const {
  const nlohmann::json* value = find(key);
  if (value && !value->is_object()) wrong(key, "a table");
  return {value ? *value : nlohmann::json::object(), file_, prefix_ + key + "."};
}

Activation HfConfig::activation(const std::string& key, const std::string& otherwise) const {
  static const std::map<std::string, Activation> known{
      {"relu", Activation::relu},
      {"gelu", Activation::gelu},
      {"gelu_new", Activation::gelu_tanh},
      {"gelu_fast", Activation::gelu_tanh},
      {"gelu_pytorch_tanh", Activation::gelu_tanh},
      {"quick_gelu", Activation::quick_gelu},
      {"silu", Activation::silu},
      {"swish", Activation::silu},
  };
  const auto found = known.find(text(key, otherwise));
  if (found == known.end())
    wrong(key, "relu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, quick_gelu, silu or swish");
  return found->second;
}

void HfConfig::only(bool condition, const std::string& key, const std::string& what) const {
  if (!condition) wrong(key, what + ": floe computes nothing else");
}

}  // namespace floe::models
