#include "floe/core/bytes.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "floe/core/error.h"

namespace floe {
namespace {

std::string with_digits(double value, const char* unit) {
  char text[48];
  const int digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f %s", digits, value, unit);
  return text;
}

}  // namespace

std::string format_bytes(std::int64_t bytes) {
  const double size = static_cast<double>(bytes < 0 ? -bytes : bytes);
  const std::string sign = bytes < 0 ? "-" : "";
  if (size >= double(kGiB)) return sign + with_digits(size / double(kGiB), "GiB");
  if (size >= double(kMiB)) return sign + with_digits(size / double(kMiB), "MiB");
  if (size >= double(kKiB)) return sign + with_digits(size / double(kKiB), "KiB");
  return str(bytes, " B");
}

std::string format_count(std::int64_t count) {
  const double size = static_cast<double>(count);
  if (size >= 1e9) return with_digits(size / 1e9, "B");
  if (size >= 1e6) return with_digits(size / 1e6, "M");
  if (size >= 1e4) return with_digits(size / 1e3, "k");
  return str(count);
}

std::int64_t parse_bytes(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 14> kUnits{
      {{"", 1},
       {"B", 1},
       {"K", 1e3},
       {"KB", 1e3},
       {"M", 1e6},
       {"MB", 1e6},
       {"G", 1e9},
       {"GB", 1e9},
       {"TB", 1e12},
       {"KiB", double(kKiB)},
       {"MiB", double(kMiB)},
       {"GiB", double(kGiB)},
       {"TiB", 1024.0 * double(kGiB)},
       {"T", 1e12}}};
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && std::isspace(static_cast<unsigned char>(unit.front())))
    unit.remove_prefix(1);
  if (status == std::errc() && std::isfinite(value) && value >= 0)
    for (const auto& [name, factor] : kUnits)
      if (unit == name && value * factor < 9.2e18) return static_cast<std::int64_t>(value * factor);
  throw ConfigError(
      str("'", text, "' is not a size: write a number and a unit, such as 40GiB, 512MiB or 5GB"));
}

}  // namespace floe
