// Small parts of the rules of samples for references in Python: one JSON question per line of
// stdin, one JSON answer per line of stdout; null where floe refuses.
#include <iostream>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/data/python/base64.h"
#include "floe/data/python/json.h"
#include "floe/data/python/random.h"
#include "floe/data/python/str.h"
#include "floe/data/shards/grouping.h"
#include "floe/data/shards/shard_list.h"
#include "floe/data/sources/assignment.h"

namespace floe::data {
namespace {

using nlohmann::json;

// Bytes travel as base64.
std::string sent(const json& question) {
  return std::string(as_text(decode_base64(question["bytes"].get<std::string>())));
}
std::string to_send(std::string_view text) { return encode_base64(std::as_bytes(std::span(text))); }

json assign(const json& question) {
  const std::size_t rows = question["rows"], columns = question["columns"];
  json pairs = json::array();
  for (const auto& [row, column] :
       best_assignment(question["values"].get<std::vector<double>>(), rows, columns))
    pairs.push_back({row, column});
  return pairs;
}

json draw(const json& question) {
  PythonRandom python(question["seed"].get<std::uint64_t>());
  TorchRandom torch(question["seed"].get<std::uint64_t>());
  json draws{{"random", json::array()},
             {"below", json::array()},
             {"rand", json::array()},
             {"int64", json::array()}};
  for (int i = 0; i < 700; ++i) {
    draws["random"].push_back(python.random());
    draws["below"].push_back(python.below(question["below"].get<std::uint64_t>()));
    draws["rand"].push_back(torch.rand());
    draws["int64"].push_back(torch.int64());
  }
  std::vector<int> order(100);
  for (int i = 0; i < 100; ++i) order[static_cast<std::size_t>(i)] = i;
  python.shuffle(order);
  draws["shuffle"] = order;
  return draws;
}

json answer(const json& question) {
  const std::string what = question["what"];
  if (what == "braces") return expand_braces(question["text"].get<std::string>(), 20000);
  if (what == "base64") return to_send(as_text(decode_base64(sent(question))));
  if (what == "assign") return assign(question);
  if (what == "draw") return draw(question);
  if (what == "strip") return to_send(strip(sent(question)));
  if (what == "int") return is_python_int(sent(question)) ? json(true) : json();
  if (what == "json") {
    const std::string bytes = sent(question);
    const PythonJson document(std::as_bytes(std::span(bytes)));
    return to_send(python_str(document.root()));
  }
  if (what == "member") {
    const auto member = split_member_name(sent(question));
    return member ? json{to_send(member->key), to_send(member->suffix)} : json();
  }
  throw Error("unknown question '" + what + "'");
}

}  // namespace
}  // namespace floe::data

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::json reply;
    try {
      reply = floe::data::answer(nlohmann::json::parse(line));
    } catch (const floe::DataError&) {
    } catch (const floe::ConfigError&) {
    }
    std::cout << reply.dump() << "\n";
  }
  return 0;
}
