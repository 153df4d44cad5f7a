// Sizes in words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace floe {

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;
constexpr std::int64_t kGiB = 1024 * kMiB;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// "1.50 GiB", "12.0 MiB", "17 B"
std::string format_bytes(std::int64_t bytes);
// "1.23 B", "69.1 M", "512"
std::string format_count(std::int64_t count);

// "40GiB", "5GB", "123", "1.5 MiB" (binary and decimal units); throws ConfigError otherwise.
std::int64_t parse_bytes(std::string_view text);

}  // namespace floe
