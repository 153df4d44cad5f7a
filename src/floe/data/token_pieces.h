// A text token by token, for people.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "floe/token/tokenizer.h"

namespace floe::data {

// What each id adds to the text before it. Ids that only begin a character add nothing; the one that
// completes it adds all of it.
std::vector<std::string> token_pieces(const token::Tokenizer& tokenizer,
                                      std::span<const std::int32_t> ids);

}  // namespace floe::data
