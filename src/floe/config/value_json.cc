#include "floe/config/value_json.h"

#include <nlohmann/json.hpp>

namespace floe::config {

nlohmann::json to_json(const Value& value) {
  if (const auto* map = value.as<Map>()) {
    nlohmann::json object = nlohmann::json::object();
    for (const auto& [key, item] : *map) object[key] = to_json(item);
    return object;
  }
  if (const auto* list = value.as<List>()) {
    nlohmann::json array = nlohmann::json::array();
    for (const Value& item : *list) array.push_back(to_json(item));
    return array;
  }
  if (const auto* flag = value.as<bool>()) return *flag;
  if (const auto* number = value.as<std::int64_t>()) return *number;
  if (const auto* number = value.as<double>()) return *number;
  if (const auto* text = value.as<std::string>()) return *text;
  return nullptr;
}

}  // namespace floe::config
