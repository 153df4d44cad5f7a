#include "floe/token/text_cleaning.h"

#include <string_view>

namespace floe::token {

std::string clean_up_spaces(std::string text) {
  static constexpr struct {
    std::string_view from, to;
  } kRepairs[] = {{" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
                  {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRepairs) {
    std::string result;
    std::size_t done = 0;
    for (std::size_t at; (at = text.find(from, done)) != std::string::npos; done = at + from.size())
      result.append(text, done, at - done).append(to);
    text = result.append(text, done);
  }
  return text;
}

}  // namespace floe::token
