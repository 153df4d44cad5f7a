#include "floe/io/file/json_text.h"

#include <set>
#include <vector>

#include "floe/core/error.h"

namespace floe {
namespace {

using nlohmann::json;

constexpr int kMostDepth = 64;

std::string shortened(std::string text) {
  constexpr std::size_t kMost = 120;
  if (text.size() <= kMost) return text;
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // whole UTF-8
  return text.substr(0, end) + "...";
}

}  // namespace

std::string quoted(const std::string& name) { return shown(json(name)); }

std::string shown(const json& value) {
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

json parse_json(const std::string& text, const std::string& file) {
  std::vector<std::set<std::string>> keys;  // of the objects around the place of reading
  const auto strict = [&](int depth, json::parse_event_t event, json& parsed) {
    require<DataError>(depth <= kMostDepth, "'", file, "': the JSON is nested deeper than ",
                       kMostDepth, " levels");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key)
      require<DataError>(keys.back().insert(parsed.get<std::string>()).second, "'", file,
                         "': the JSON has the key ", shown(parsed), " twice");
    return true;
  };
  try {
    return json::parse(text, strict);
  } catch (const json::exception& error) {
    throw DataError(str("'", file, "': not valid JSON: ", shortened(error.what())));
  }
}

}  // namespace floe
