#include "floe/token/json/json_fields.h"

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/file/json_text.h"

namespace floe::token {

using nlohmann::json;

JsonFields::JsonFields(const json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  require<DataError>(object.is_object(), where_, " must be an object, not ", shown(object));
}

const json& JsonFields::any(const char* name) {
  static const json nothing;
  seen_.insert(name);
  const auto place = object_.find(name);
  return place == object_.end() ? nothing : *place;
}

const json& JsonFields::must(const char* name, bool right, const char* kind) {
  require<DataError>(right, where_, ": \"", name, "\" must be ", kind, ", not ", shown(any(name)));
  return any(name);
}

std::string JsonFields::type() { return text("type"); }

bool JsonFields::flag(const char* name) {
  return must(name, any(name).is_boolean(), "true or false").get<bool>();
}

bool JsonFields::flag(const char* name, bool otherwise) {
  return any(name).is_null() ? otherwise : flag(name);
}

std::string JsonFields::text(const char* name) {
  return must(name, any(name).is_string(), "a text").get<std::string>();
}

std::optional<std::string> JsonFields::text_if_any(const char* name) {
  if (any(name).is_null()) return std::nullopt;
  return text(name);
}

std::size_t JsonFields::count(const char* name) {
  return must(name, any(name).is_number_unsigned(), "a number of 0 or more").get<std::size_t>();
}

char32_t JsonFields::character(const char* name) {
  const std::string value = text(name);
  const bool one =
      !value.empty() && value.size() == static_cast<std::size_t>(utf8_length(value[0]));
  must(name, one, "one character");
  const char* at = value.data();
  return next_char(at);
}

const json& JsonFields::list(const char* name) {
  return must(name, any(name).is_array(), "a list");
}

const json& JsonFields::object(const char* name) {
  return must(name, any(name).is_object(), "an object");
}

void JsonFields::finish() const {
  for (const auto& [name, value] : object_.items())
    require<ConfigError>(seen_.contains(name), where_, ": floe does not know the field ",
                         quoted(name));
}

}  // namespace floe::token
