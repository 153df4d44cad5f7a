#include "floe/config/problems.h"

#include "floe/core/utf8.h"

namespace floe::config {

void Problems::add(const Origin& origin, const std::string& sentence) {
  // Of what nobody wrote there is no place to look at.
  const std::string where = origin.source == Origin::of_default().source ? "" : origin.text();
  lines_.push_back(shown_bytes(where.empty() ? sentence : str(where, ": ", sentence)));
}

void Problems::throw_if_any() const {
  if (!lines_.empty()) throw ConfigError(join(lines_, "\n"));
}

}  // namespace floe::config
