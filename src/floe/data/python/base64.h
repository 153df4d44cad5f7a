// base64 as Python's base64 module reads and writes it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "floe/data/sample.h"

namespace floe::data {

// Characters outside the alphabet (line breaks, `-`, `_`) are left out. The data ends where padding
// completes a group of four; what follows is ignored. Throws DataError when characters or padding
// are missing at the end, and for text that is not ASCII.
Bytes decode_base64(std::string_view text);

// As base64.b64encode.
std::string encode_base64(std::span<const std::byte> bytes);

}  // namespace floe::data
