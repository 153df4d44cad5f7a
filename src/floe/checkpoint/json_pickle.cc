#include "floe/checkpoint/json_pickle.h"

#include <limits>
#include <string>
#include <utility>

#include "floe/core/utf8.h"

namespace floe::checkpoint {

pickle::Value to_pickle(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::boolean: return value.get<bool>();
    case nlohmann::json::value_t::number_integer: return value.get<std::int64_t>();
    case nlohmann::json::value_t::number_unsigned:
      // Python's integers have no end, the writer's do: 64-bit words go out as text.
      if (value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
        return std::to_string(value.get<std::uint64_t>());
      return value.get<std::int64_t>();
    case nlohmann::json::value_t::number_float: return value.get<double>();
    case nlohmann::json::value_t::string: return bytes_to_text(value.get<std::string>());
    case nlohmann::json::value_t::array: {
      pickle::Items items;
      for (const auto& item : value) items.push_back(to_pickle(item));
      return pickle::list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      pickle::Entries entries;
      for (const auto& [key, item] : value.items())
        entries.emplace_back(bytes_to_text(key), to_pickle(item));
      return pickle::dict(std::move(entries));
    }
    default: return {};
  }
}

nlohmann::json to_json(const pickle::Value& value) {
  using pickle::Kind;
  switch (value.kind()) {
    case Kind::boolean: return value.boolean();
    case Kind::integer: return value.integer();
    case Kind::real: return value.real();
    case Kind::text: return value.text();
    case Kind::list:
    case Kind::tuple: {
      auto items = nlohmann::json::array();
      for (const pickle::Value& item : value.items()) items.push_back(to_json(item));
      return items;
    }
    default: break;
  }
  if (!value.has_entries()) return nullptr;
  auto object = nlohmann::json::object();
  for (const auto& [key, item] : value.entries())
    if (key.is(Kind::text))
      object[key.text()] = to_json(item);
    else if (key.is(Kind::integer))
      object[std::to_string(key.integer())] = to_json(item);
  return object;
}

}  // namespace floe::checkpoint
