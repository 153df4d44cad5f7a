#include "floe/data/token_pieces.h"

namespace floe::data {
namespace {

constexpr std::string_view kIncomplete = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::vector<std::string> token_pieces(const token::Tokenizer& tokenizer,
                                      std::span<const std::int32_t> ids) {
  std::vector<std::string> pieces;
  std::string before;
  for (std::size_t count = 1; count <= ids.size(); ++count) {
    std::string text = tokenizer.decode(ids.first(count));
    while (text.ends_with(kIncomplete)) text.resize(text.size() - kIncomplete.size());
    if (text.starts_with(before)) {
      pieces.push_back(text.substr(before.size()));
      before = std::move(text);
    } else if (before.starts_with(text)) {  // what was complete is open again
      pieces.emplace_back();
    } else {  // a decoder that tidies earlier text
      pieces.push_back(tokenizer.token_of(ids[count - 1]));
      before = std::move(text);
    }
  }
  return pieces;
}

}  // namespace floe::data
