// How Python finds out the encoding of JSON in bytes.
#pragma once

#include <string>
#include <string_view>

namespace floe::data {

// The text of `bytes` as UTF-8, surrogates allowed. UTF-8 stays in place (without a byte order mark);
// UTF-16 and UTF-32, told by a byte order mark or by where the zeros are, go through `storage`.
// Throws DataError when the bytes are not valid in their encoding.
std::string_view json_text(std::string_view bytes, std::string& storage);

}  // namespace floe::data
