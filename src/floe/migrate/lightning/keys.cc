#include "floe/migrate/lightning/keys.h"

#include <cctype>

#include "floe/core/error.h"
#include "floe/schema/codec.h"

namespace floe::migrate {

using config::Map;
using config::Value;

void refuse(const Value& value, const std::string& sentence) {
  throw ConfigError(str(value.origin.text(), ": ", sentence));
}

std::string last_part(std::string_view dotted) {
  const auto dot = dotted.rfind('.');
  return std::string(dot == std::string_view::npos ? dotted : dotted.substr(dot + 1));
}

std::string class_of(const Value& block) {
  if (!block.as<Map>()) return "";
  for (const char* key : {"_target_", "class_path"})
    if (const Value* name = block.as<Map>()->find(key)) return name->scalar_text();
  return "";
}

Map arguments_of(const Value& block) {
  const Map* map = block.as<Map>();
  if (!map) return {};
  Map arguments;
  for (const auto& [key, value] : *map)
    if (key != "_target_" && key != "class_path" && key != "init_args" && key != "_partial_" &&
        key != "_convert_" && key != "_recursive_")
      arguments[key] = value;
  if (const Value* more = map->find("init_args"); more && more->as<Map>())
    for (const auto& [key, value] : *more->as<Map>()) arguments[key] = value;
  return arguments;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

Value word(const std::string& text, const Value& from) { return Value(text, from.origin); }

bool truth(const Value& value, std::string_view key) {
  if (value.is_null()) return false;
  const bool* flag = value.as<bool>();
  if (!flag) refuse(value, str(key, " must be true or false, not ", value.shown()));
  return *flag;
}

std::int64_t whole(const Value& value, std::string_view key) {
  const auto number = config::integer_of(value);
  if (!number) refuse(value, str(key, " must be a whole number, not ", value.shown()));
  return *number;
}

void set_types(Target& target, const Value& from, const std::string& comment,
               const std::string& param, const std::string& reduce, const std::string& buffer) {
  target.page.set("strategy.mixed_precision.param", word(param, from), comment);
  target.page.set("strategy.mixed_precision.reduce", word(reduce, from), "");
  target.page.set("strategy.mixed_precision.buffer", word(buffer, from), "");
}

void warn_if_set(const Value& value, const std::string& comment, Target& target) {
  target.page.leave_out(comment);
  if (!value.is_null()) target.page.warn(comment);
}

}  // namespace floe::migrate
