// For the references in Python: JSON lines in, JSON lines out.
//
// usage: tokenizer_tool PATH [--flamingo]
//   {"encode": "text", "special": true}  ->  [ids]
//   {"decode": [ids], "skip": false}     ->  "text"
//   {"id_of": "token"}                   ->  id
//   {"info": true}                       ->  {"size": ..., "bos": ..., "eos": ..., "pad": ...}
//   {"add": ["token", ...]}              ->  new size
//   {"describe": true}                   ->  "text"
#include <iostream>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/token/tokenizer.h"

namespace {

using nlohmann::json;

json answer(floe::token::Tokenizer& tokenizer, const json& question) {
  if (question.contains("encode"))
    return tokenizer.encode(question["encode"].get<std::string>(), question.value("special", true));
  if (question.contains("decode"))
    return tokenizer.decode(question["decode"].get<std::vector<std::int32_t>>(),
                            question.value("skip", false));
  if (question.contains("id_of")) return tokenizer.id_of(question["id_of"].get<std::string>());
  if (question.contains("add"))
    return tokenizer.add_special_tokens(question["add"].get<std::vector<std::string>>());
  if (question.contains("describe")) return floe::token::describe(tokenizer);
  const auto id = [](const std::optional<std::int32_t>& value) {
    return value ? json(*value) : json();
  };
  return {{"size", tokenizer.size()},
          {"bos", id(tokenizer.bos_id())},
          {"eos", id(tokenizer.eos_id())},
          {"pad", id(tokenizer.pad_id())}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto tokenizer = floe::token::load_tokenizer(argc > 1 ? argv[1] : "");
    if (argc > 2 && std::string(argv[2]) == "--flamingo") {
      const auto tokens = floe::token::add_flamingo_tokens(*tokenizer);
      std::cout << json{{"image", tokens.image},
                        {"endofchunk", tokens.endofchunk},
                        {"pad", tokens.pad},
                        {"eos", tokens.eos},
                        {"size", tokens.size}}
                       .dump()
                << "\n";
    }
    std::string line;
    while (std::getline(std::cin, line))
      std::cout << answer(*tokenizer, json::parse(line)).dump(-1, ' ', true) << "\n";
  } catch (const floe::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
