// The pieces that TensorBoard's event files are made of.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace floe::observe {

// CRC-32C (Castagnoli), the checksum of TensorFlow's record files.
std::uint32_t crc32c(std::string_view bytes);

// As record files store it: rotated and shifted, so that the checksum of bytes that contain
// checksums stays useful.
constexpr std::uint32_t masked_crc(std::uint32_t crc) {
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

// A record of TensorFlow's record files: its length, the bytes, a masked CRC-32C of each.
std::string tf_record(std::string_view bytes);

// A resolved configuration as one list of settings, for readers that have no notion of nesting:
// {"train": {"lr": 1, "betas": [1, 2]}} -> {"train.lr", 1}, {"train.betas", [1, 2]}. Lists stay
// whole.
std::vector<std::pair<std::string, nlohmann::json>> flat_config(const nlohmann::json& config);

}  // namespace floe::observe
