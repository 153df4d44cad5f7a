// The tokens that the tokenizer itself puts around every text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace floe::token {

struct PostProcessor {
  std::vector<std::int32_t> before, after;

  // In words; `name` gives the text of an id.
  template <class Name>
  std::string describe(const Name& name) const {
    std::string text;
    for (const std::int32_t id : before) text += name(id) + " ";
    text += "text";
    for (const std::int32_t id : after) text += " " + name(id);
    return text;
  }
};

// The "post_processor" of tokenizer.json; nothing for null. Throws ConfigError for kinds that floe does
// not support.
PostProcessor read_post_processor(const nlohmann::json& post_processor, const std::string& where);

}  // namespace floe::token
