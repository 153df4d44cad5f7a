// The reference outputs in tests/goldens/data.
#pragma once

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/hash.h"

namespace floe::data {

inline std::string goldens_folder() {
  const char* source = std::getenv("FLOE_SOURCE_DIR");
  return std::string(source ? source : ".") + "/tests/goldens/data/";
}

// A file of tests/goldens/data/golden.
inline nlohmann::json golden(const std::string& name) {
  const std::string path = goldens_folder() + "golden/" + name;
  std::ifstream file(path);
  require(file.good(), "cannot read ", path);
  return nlohmann::json::parse(file);
}

// As the goldens digest lists of numbers: int32, little endian.
template <class Numbers>
std::string sha256_of_int32(const Numbers& numbers) {
  const std::vector<std::int32_t> words(numbers.begin(), numbers.end());
  return sha256_hex(std::as_bytes(std::span(words)));
}

}  // namespace floe::data
