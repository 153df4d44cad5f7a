// Text of samples: the marks in it and how it is cut.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "floe/token/tokenizer.h"

namespace floe::data {

inline constexpr std::string_view kImageMark = "<image>", kEndOfChunkMark = "<|endofchunk|>";

// Without the marks, for corrected rules: also without those that the removal of others forms.
std::string without_marks(std::string_view text);

// Ids of the text, cut on the right to `max_tokens`. Throws Drop (bad_text) when the text is not UTF-8.
std::vector<std::int32_t> cut_ids(const token::Tokenizer& tokenizer, std::string_view text,
                                  std::int64_t max_tokens);

// The text of the eos token; throws ConfigError when the tokenizer has none.
std::string eos_text(const token::Tokenizer& tokenizer);

}  // namespace floe::data
