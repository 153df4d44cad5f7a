// Shares in words.
#pragma once

#include <cmath>
#include <string>

#include "floe/core/str.h"

namespace floe::diag {

// "62%"
template <class Number>
std::string percent(Number part, Number whole) {
  const double share =
      whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
  return str(std::lround(share), "%");
}

}  // namespace floe::diag
