#include "floe/schema/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "floe/core/str.h"

namespace floe::config {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view without_sign(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return text;
}

// The grammar of YAML 1.2's core schema: [-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]?
// [0-9]+ )?
bool looks_like_number(std::string_view text) {
  text = without_sign(text);
  std::size_t i = 0, digits = 0;
  for (; i < text.size() && is_digit(text[i]); ++i) ++digits;
  if (i < text.size() && text[i] == '.')
    for (++i; i < text.size() && is_digit(text[i]); ++i) ++digits;
  if (digits == 0) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    const std::string_view exponent = without_sign(text.substr(i + 1));
    return !exponent.empty() && std::all_of(exponent.begin(), exponent.end(), is_digit);
  }
  return i == text.size();
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  int base = 10;
  if (text.starts_with("0x")) base = 16;
  if (text.starts_with("0o")) base = 8;
  if (base != 10) text.remove_prefix(2);
  const bool plus = base == 10 && text.starts_with('+');
  if (plus) text.remove_prefix(1);
  if ((plus || base != 10) && text.starts_with('-')) return std::nullopt;
  std::int64_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<double> parse_double(std::string_view text) {
  const double sign = text.starts_with('-') ? -1 : 1;
  const std::string_view size = without_sign(text);
  if (size == ".inf" || size == ".Inf" || size == ".INF")
    return sign * std::numeric_limits<double>::infinity();
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return std::nan("");
  if (!looks_like_number(text)) return std::nullopt;
  double number = 0;
  const auto result = std::from_chars(size.data(), size.data() + size.size(), number);
  // from_chars says "out of range" both for too large and too small; strtod tells them apart.
  if (result.ec == std::errc::result_out_of_range)
    number = std::strtod(std::string(size).c_str(), nullptr);
  return sign * number;
}

template <std::size_t N>
bool is_any(std::string_view text, const std::array<std::string_view, N>& words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

}  // namespace

Origin Origin::of_default() {
  static const auto source = std::make_shared<const std::string>("default");
  return {source};
}

Origin Origin::of_argument(std::string_view argument) {
  return {std::make_shared<const std::string>(str("command line '", argument, "'"))};
}

std::string Origin::text() const {
  if (!source) return "";
  return line > 0 ? str(*source, ":", line, ":", column) : *source;
}

const Value* Map::find(std::string_view key) const {
  for (const Entry& entry : entries_)
    if (entry.first == key) return &entry.second;
  return nullptr;
}

Value* Map::find(std::string_view key) {
  return const_cast<Value*>(static_cast<const Map*>(this)->find(key));
}

Value& Map::operator[](std::string_view key) {
  if (Value* value = find(key)) return *value;
  return entries_.emplace_back(std::string(key), Value()).second;
}

bool Map::erase(std::string_view key) {
  return std::erase_if(entries_, [&](const Entry& entry) { return entry.first == key; }) > 0;
}

std::vector<std::string> Map::keys() const {
  std::vector<std::string> keys;
  for (const Entry& entry : entries_) keys.push_back(entry.first);
  return keys;
}

bool Map::empty() const { return entries_.empty(); }
std::size_t Map::size() const { return entries_.size(); }

Value Value::plain(std::string_view text, Origin origin) {
  static constexpr std::array<std::string_view, 5> kNull{"", "~", "null", "Null", "NULL"};
  static constexpr std::array<std::string_view, 3> kTrue{"true", "True", "TRUE"};
  static constexpr std::array<std::string_view, 3> kFalse{"false", "False", "FALSE"};
  Value value({}, std::move(origin));
  if (is_any(text, kNull)) return value;
  value.spelling = text;
  if (is_any(text, kTrue) || is_any(text, kFalse)) {
    value.data = is_any(text, kTrue);
  } else if (const auto integer = parse_integer(text)) {
    value.data = *integer;
  } else if (const auto number = parse_double(text)) {
    value.data = *number;
  } else {
    value.data = std::string(text);
    value.spelling.clear();
  }
  return value;
}

const Value* Value::at(std::string_view path) const {
  const Value* value = this;
  for (const std::string& key : split_path(path)) {
    const Map* map = value->as<Map>();
    value = map ? map->find(key) : nullptr;
    if (!value) return nullptr;
  }
  return value;
}

std::string Value::scalar_text() const {
  if (const auto* text = as<std::string>()) return *text;
  if (!spelling.empty()) return spelling;
  if (const auto* flag = as<bool>()) return *flag ? "true" : "false";
  if (const auto* integer = as<std::int64_t>()) return str(*integer);
  if (const auto* number = as<double>()) return number_text(*number);
  return "";
}

std::string Value::shown() const {
  if (is_null()) return "null";
  if (as<List>()) return "a list";
  if (as<Map>()) return "a block";
  std::string text = scalar_text();
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return as<std::string>() ? str("'", text, "'") : text;
}

bool Value::operator==(const Value& other) const {
  if (const auto* number = as<double>())  // so that .nan equals itself and a tree its copy
    if (const auto* that = other.as<double>(); that && std::isnan(*number) && std::isnan(*that))
      return true;
  if (data.index() != other.data.index()) return false;
  if (const auto* map = as<Map>()) {
    const Map& that = *other.as<Map>();
    return std::equal(map->begin(), map->end(), that.begin(), that.end());
  }
  if (const auto* list = as<List>()) return *list == *other.as<List>();
  if (const auto* text = as<std::string>()) return *text == *other.as<std::string>();
  if (const auto* flag = as<bool>()) return *flag == *other.as<bool>();
  if (const auto* integer = as<std::int64_t>()) return *integer == *other.as<std::int64_t>();
  if (const auto* number = as<double>()) return *number == *other.as<double>();
  return true;
}

std::string number_text(double number) {
  if (std::isnan(number)) return ".nan";
  if (std::isinf(number)) return number < 0 ? "-.inf" : ".inf";
  std::array<char, 32> text;
  const auto result = std::to_chars(text.data(), text.data() + text.size(), number);
  std::string out(text.data(), result.ptr);
  // A double must not read back as an integer.
  return out.find_first_of(".e") == std::string::npos ? out + ".0" : out;
}

std::int64_t count_nodes(const Value& value) {
  std::int64_t count = 1;
  if (const auto* list = value.as<List>())
    for (const Value& item : *list) count += count_nodes(item);
  if (const auto* map = value.as<Map>())
    for (const auto& [key, item] : *map) count += count_nodes(item);
  return count;
}

int depth_of(const Value& value) {
  int deepest = 0;
  if (const auto* list = value.as<List>())
    for (const Value& item : *list) deepest = std::max(deepest, depth_of(item));
  if (const auto* map = value.as<Map>())
    for (const auto& [key, item] : *map) deepest = std::max(deepest, depth_of(item));
  return deepest + 1;
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = path.find('.', begin);
    parts.emplace_back(
        path.substr(begin, end == std::string::npos ? std::string::npos : end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

void merge(Value& base, const Value& over) {
  Map* into = base.as<Map>();
  const Map* from = over.as<Map>();
  if (!into || !from) {
    base = over;
    return;
  }
  base.origin = over.origin;
  for (const auto& [key, value] : *from) {
    if (Value* known = into->find(key))
      merge(*known, value);
    else
      (*into)[key] = value;
  }
}

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
