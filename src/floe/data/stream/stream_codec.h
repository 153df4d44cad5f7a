// How the loader's state stands in JSON: lists of numbers as base64 of variable-length integers,
// which keeps a shuffle buffer of thousands of samples within some ten kilobytes. Whatever is
// malformed is a DataError.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "floe/core/error.h"

namespace floe::data {

std::string encode_numbers(std::span<const std::uint64_t> numbers);
std::vector<std::uint64_t> decode_numbers(std::string_view text);

// 32-bit words as they are: the states of generators.
std::string encode_words(std::span<const std::uint32_t> words);
std::vector<std::uint32_t> decode_words(std::string_view text);

// The value as 32 bits; DataError when it has more.
std::uint32_t narrow_u32(std::uint64_t value);

// A member of that type; DataError when it is missing or another.
template <class T>
T get(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  require<DataError>(object.is_object() && found != object.end(), "loader state: '", key,
                     "' is missing");
  bool fits = false;
  if constexpr (std::is_same_v<T, bool>)
    fits = found->is_boolean();
  else if constexpr (std::is_unsigned_v<T>)
    fits = found->is_number_unsigned();
  else if constexpr (std::is_integral_v<T>)
    fits = found->is_number_integer();
  else if constexpr (std::is_same_v<T, std::string>)
    fits = found->is_string();
  else
    fits = true;  // JSON itself
  require<DataError>(fits, "loader state: '", key, "' has another type than expected");
  return found->template get<T>();
}

}  // namespace floe::data
