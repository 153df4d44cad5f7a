// The tree that configurations are made of before they become typed, with the origin of every
// value.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace floe::config {

// Where a value was written: "train.yaml:3:9", "default", "command line 'train.steps=5'".
struct Origin {
  std::shared_ptr<const std::string> source;  // a file, or the whole text when there is no line
  int line = 0, column = 0;                   // from 1; 0 = the source has no lines

  static Origin of_default();
  static Origin of_argument(std::string_view argument);
  std::string text() const;
};

class Value;

// Key and value pairs in the order they were written. Keys are unique.
class Map {
 public:
  using Entry = std::pair<std::string, Value>;

  const Value* find(std::string_view key) const;
  Value* find(std::string_view key);
  // The value of this key, a new null at the end when there was none.
  Value& operator[](std::string_view key);
  bool erase(std::string_view key);
  std::vector<std::string> keys() const;

  bool empty() const;
  std::size_t size() const;
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
};

using List = std::vector<Value>;

class Value {
 public:
  using Data = std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Map>;

  Value() = default;
  explicit Value(Data data, Origin origin = {})
      : data(std::move(data)), origin(std::move(origin)) {}
  // A plain YAML scalar: "1e-4" is a number, "~" is null, "abc" a string (YAML 1.2 core schema).
  static Value plain(std::string_view text, Origin origin = {});

  bool is_null() const { return std::holds_alternative<std::monostate>(data); }
  bool is_scalar() const { return !as<List>() && !as<Map>(); }
  // The value when it is of this type, else null.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
  template <class T>
  T* as() {
    return std::get_if<T>(&data);
  }
  // The value at the end of a dotted path, null when there is none.
  const Value* at(std::string_view path) const;

  // For messages: "a list", "a block", "null", "5", "'abc'"; long strings are cut.
  std::string shown() const;
  // A scalar as it was written (007 stays 007), else as YAML would have it. Empty for null.
  std::string scalar_text() const;
  // Equal data; origins and spelling do not count.
  bool operator==(const Value& other) const;

  Data data;
  Origin origin;
  std::string spelling;  // of a number or bool as written; empty when it was never text
};

// A number in the shortest form that reads back as the same double.
std::string number_text(double number);

// Size and depth of a tree are bounded wherever one is built from outside, so that recursion over a
// tree is safe and aliases cannot blow it up.
constexpr int kMostDepth = 48;
constexpr std::int64_t kMostNodes = 20'000;
std::int64_t count_nodes(const Value& value);
int depth_of(const Value& value);  // a scalar has depth 1

// The nesting of a dotted path: "a.b" -> {"a", "b"}.
std::vector<std::string> split_path(std::string_view path);

// One tree over another: maps merge key by key; anything else in `over` (lists and nulls too)
// replaces what was there. Each value keeps the origin of the layer that it came from.
void merge(Value& base, const Value& over);

// A configuration as JSON, for those who read files rather than YAML.
nlohmann::json to_json(const Value& value);

}  // namespace floe::config
