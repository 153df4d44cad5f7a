#include "floe/io/utf8.h"

#include <cstddef>
#include <cstdint>

namespace floe {

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(at++);
    if (first < 0x80) continue;
    const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || text.size() - at < static_cast<std::size_t>(more))
      return false;
    std::uint32_t code = first & (0x3f >> more);
    for (int i = 0; i < more; ++i, ++at) {
      if ((byte(at) & 0xc0) != 0x80) return false;
      code = code << 6 | (byte(at) & 0x3f);
    }
    const bool overlong = (more == 2 && code < 0x800) || (more == 3 && code < 0x10000);
    if (overlong || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return false;
  }
  return true;
}

}  // namespace floe
