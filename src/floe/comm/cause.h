// What torch says of a failure, as one line without its stack.
#pragma once

#include <algorithm>
#include <exception>
#include <string>

namespace floe::comm {

inline std::string cause_of(const std::exception& e) {
  std::string text = e.what();
  text.resize(std::min(text.size(), text.find("\nException raised from")));
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

}  // namespace floe::comm
