#include "floe/metrics/number_text.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace floe::metrics {

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[32];
  const bool whole = std::trunc(value) == value && std::abs(value) < 1e15;  // 100000, not 1e+05
  const auto end = whole ? std::to_chars(text, text + sizeof text, value, std::chars_format::fixed)
                         : std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

std::string quoted_text(const std::string& text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace floe::metrics
