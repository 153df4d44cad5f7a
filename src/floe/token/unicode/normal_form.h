// Unicode's normal forms, with the characters that the `tokenizers` package knows.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace floe::token {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

const char* name_of(NormalForm form);
std::optional<NormalForm> normal_form_named(std::string_view name);

// Appends the text in that form to `result` and returns true, or returns false (and leaves `result`
// alone) when the text is in that form already.
bool normalize(std::string_view text, NormalForm form, std::string& result);

}  // namespace floe::token
