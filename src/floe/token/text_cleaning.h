// transformers' repair of spaces in decoded English, for tokenizers whose configuration asks for it
// ("clean_up_tokenization_spaces").
#pragma once

#include <string>

namespace floe::token {

// "Hello , I 'm here ." becomes "Hello, I'm here."
std::string clean_up_spaces(std::string text);

}  // namespace floe::token
