// A caption in words as pycocoevalcap cuts it before it counts n-grams: by Stanford's PTBTokenizer
// 3.4.1 in lower case, without punctuation.
//
// Note [PTB words]
// The rules here are a new description of what that tokenizer does with sentences such as captions
// and what models make of them: contractions in two ("is n't", "man 's"), abbreviations that keep
// their period, numbers, hyphens, symbols, quotes, web addresses. The tests compare with its own
// output. What differs is rare: whether "no." keeps its period at the end of a line depends on the
// next line there, and long addresses, markup, faces made of marks and scripts without spaces
// follow simpler rules here.
//
// Of punctuation the package removes ' ` . ? ! , : - -- ... ; and quotes. Brackets stay, as -lrb-
// and -rrb-, since it looks for them in capitals; so do runs such as "!!".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace floe::eval {

std::vector<std::string> ptb_words(std::string_view caption);

}  // namespace floe::eval
