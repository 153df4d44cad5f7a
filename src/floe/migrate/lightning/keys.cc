#include "floe/migrate/lightning/keys.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "floe/core/error.h"
#include "floe/schema/codec.h"

namespace floe::migrate {

using config::List;
using config::Map;
using config::Value;

bool knows(const LightningBlock& block, std::string_view key) {
  return std::any_of(block.keys.begin(), block.keys.end(),
                     [&](const LightningKey& row) { return row.name == key; });
}

std::size_t known_keys(const LightningBlock& block, const Map& map) {
  std::size_t count = 0;
  for (const auto& [key, value] : map) count += knows(block, key) ? 1 : 0;
  return count;
}

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

bool is_reference(const Value& value) {
  const auto* text = value.as<std::string>();
  return text && text->find("${") != std::string::npos;
}

bool has_reference(const Value& value) {
  if (const auto* list = value.as<List>())
    return std::any_of(list->begin(), list->end(), has_reference);
  if (const auto* map = value.as<Map>())
    return std::any_of(map->begin(), map->end(),
                       [](const auto& entry) { return has_reference(entry.second); });
  return is_reference(value);
}

bool types_are_unresolved(const Target& target) {
  const Value* strategy = target.trainer.at("strategy");
  const Value* types = target.strategy.at("mixed_precision");
  return (strategy && is_reference(*strategy)) || (types && has_reference(*types));
}

std::vector<std::int64_t> chosen_gpus(const Value& devices) {
  std::vector<std::int64_t> gpus;
  if (const auto* list = devices.as<List>()) {
    for (const Value& item : *list) {
      const auto number = config::integer_of(item);
      if (!number || *number < 0) return {};
      gpus.push_back(*number);
    }
  } else if (const auto* text = devices.as<std::string>();
             text && text->find(',') != std::string::npos) {
    for (const char *at = text->data(), *end = at + text->size(); at < end; ++at) {
      std::int64_t number = 0;
      while (at < end && *at == ' ') ++at;
      if (at == end) break;
      const auto [last, error] = std::from_chars(at, end, number);
      if (error != std::errc() || number < 0 || (last < end && *last != ',')) return {};
      gpus.push_back(number);
      at = last;
    }
  }
  return gpus;
}

std::optional<std::int64_t> ranks_of_machine(const Value& devices) {
  if (const auto gpus = chosen_gpus(devices); !gpus.empty())
    return static_cast<std::int64_t>(gpus.size());
  return config::integer_of(devices);
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
