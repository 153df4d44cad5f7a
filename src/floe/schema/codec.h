// How each C++ type stands in a configuration: Codec<T> reads it from a Value, writes it back, and
// says in words what it is. Structs get theirs from their schema (schema.h).
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "floe/core/dtype.h"
#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/schema/value.h"

namespace floe::config {

// What help and the reference page say about a field.
struct FieldInfo {
  std::string key;           // "steps"; inside lists "[].name", inside named blocks ".NAME.name"
  std::string type;          // "integer, at least 1"
  std::string default_text;  // as YAML; empty when required
  std::string help;          // one sentence without a full stop
  bool required = false;
  std::vector<std::string> choices;  // every value it may have, where these have names
  std::vector<FieldInfo> children;   // of a section
};

// A field under its full key, "train.clip.norm".
struct KeyInfo {
  std::string key;
  const FieldInfo* field = nullptr;
};
// What can be set, in the order of the schema: blocks first, then what is in them. The fields must
// outlive it.
std::vector<KeyInfo> all_keys(const std::vector<FieldInfo>& fields);

// The children of a list or of a block by name, keyed from their container.
std::vector<FieldInfo> with_prefix(const std::string& prefix, std::vector<FieldInfo> fields);

// Plain text for --help: one field per paragraph, full keys.
std::string help_text(const std::vector<FieldInfo>& fields);
// Markdown: a table per section.
std::string markdown_reference(const std::vector<FieldInfo>& fields);

// What is wrong with a configuration: all of it, not only the first thing.
class Problems {
 public:
  void add(const Origin& origin, const std::string& sentence);
  std::size_t count() const { return lines_.size(); }
  // One ConfigError with one line per problem, "train.yaml:3:9: train.steps is 0, but ...".
  void throw_if_any() const;

 private:
  std::vector<std::string> lines_;
};

// A place in the tree while it is read: its dotted path, and where problems go.
struct Place {
  std::string path;
  Problems& problems;

  Place key(const std::string& name) const {
    return {path.empty() ? name : path + "." + name, problems};
  }
  Place item(std::size_t index) const { return {str(path, "[", index, "]"), problems}; }
  // Adds "origin: path parts..." and returns false, so that readers can `return place.fail(...)`.
  template <class... Parts>
  bool fail(const Value& value, const Parts&... parts) const {
    problems.add(value.origin, str(path.empty() ? "the configuration" : path, " ", parts...));
    return false;
  }
};

// A number of bytes, written as 40GiB, 512MiB, 5GB or a plain number.
struct ByteSize {
  std::int64_t bytes = 0;
  auto operator<=>(const ByteSize&) const = default;
};

// all: every field. defaults: without the fields that a configuration must give itself.
enum class Write { all, defaults };

// In words, alone and in a list: {"an integer", "integers"}.
struct TypeName {
  std::string one, many;
};

// Codec<T> has
//   static TypeName type();
//   static bool read(const Value&, T& out, const Place&);   false: a problem was added
//   static Value write(const T&, Write);
//   static std::vector<FieldInfo> children(const T& defaults);   of structs, for help
template <class T>
struct Codec;

// Base of codecs of things without fields.
struct Leaf {
  static std::vector<FieldInfo> children(const auto&) { return {}; }
};

template <>
struct Codec<bool> : Leaf {
  static TypeName type() { return {"true or false", "true or false values"}; }
  static bool read(const Value& value, bool& out, const Place& place);
  static Value write(bool flag, Write) { return Value(flag); }
};

// Integral numbers such as 5000 or 5e3.
std::optional<std::int64_t> integer_of(const Value& value);

template <std::integral T>
struct Codec<T> : Leaf {
  static TypeName type() { return {"an integer", "integers"}; }
  static bool read(const Value& value, T& out, const Place& place) {
    const auto integer = integer_of(value);
    if (!integer || !std::in_range<T>(*integer))
      return place.fail(value, "must be an integer, not ", value.shown());
    out = static_cast<T>(*integer);
    return true;
  }
  static Value write(T number, Write) { return Value(static_cast<std::int64_t>(number)); }
};

template <>
struct Codec<double> : Leaf {
  static TypeName type() { return {"a number", "numbers"}; }
  static bool read(const Value& value, double& out, const Place& place);  // finite
  static Value write(double number, Write) { return Value(number); }
};

template <>
struct Codec<std::string> : Leaf {
  static TypeName type() { return {"a string", "strings"}; }
  // Numbers count as text, as they were written: a run may be called 007.
  static bool read(const Value& value, std::string& out, const Place& place);
  static Value write(const std::string& text, Write) { return Value(text); }
};

template <>
struct Codec<ByteSize> : Leaf {
  static TypeName type() { return {"a size such as 40GiB", "sizes such as 40GiB"}; }
  static bool read(const Value& value, ByteSize& out, const Place& place);
  static Value write(ByteSize size, Write);
};

// The escape hatch: whatever stands there, unread.
template <>
struct Codec<Value> : Leaf {
  static TypeName type() { return {"any value", "any values"}; }
  static bool read(const Value& value, Value& out, const Place&) {
    out = value;
    return true;
  }
  static Value write(const Value& value, Write) { return value; }
};

// "must be one of a, b, c, not 'd'; did you mean ...?"
bool fail_choice(const Value& value, const Place& place, const std::vector<std::string>& names);

template <>
struct Codec<DType> : Leaf {
  static TypeName type() { return {"a dtype such as bf16", "dtypes such as bf16"}; }
  static bool read(const Value& value, DType& out, const Place& place);
  static Value write(DType dtype, Write) { return Value(std::string(name_of(dtype))); }
};

// An enum whose namespace has `enum_names(E)`: a range of (name, value) pairs.
template <class T>
concept NamedEnum = std::is_enum_v<T> && requires(T value) {
  enum_names(value);
};

// Its name in configurations and files; empty for a value without one.
template <NamedEnum T>
std::string_view enum_name(T wanted) {
  for (const auto& [name, value] : enum_names(T{}))
    if (value == wanted) return name;
  return "";
}

template <NamedEnum T>
struct Codec<T> : Leaf {
  static std::vector<std::string> names() {
    std::vector<std::string> names;
    for (const auto& [name, value] : enum_names(T{})) names.emplace_back(name);
    return names;
  }
  static TypeName type() { return {"one of " + join(names()), "of " + join(names())}; }
  static bool read(const Value& value, T& out, const Place& place) {
    const auto* text = value.as<std::string>();
    const auto number = integer_of(value);  // a name may be one, such as 0
    for (const auto& [name, named] : enum_names(T{}))
      if ((text && *text == name) || (number && std::to_string(*number) == name))
        return out = named, true;
    return fail_choice(value, place, names());
  }
  static Value write(T value, Write) {
    const std::string_view name = enum_name(value);
    return name.empty() ? Value() : Value(std::string(name));
  }
};

// The names of all values of a type that has them; none for any other type.
template <class T>
struct Choices {
  static std::vector<std::string> names() {
    if constexpr (NamedEnum<T>)
      return Codec<T>::names();
    else if constexpr (std::same_as<T, bool>)
      return {"true", "false"};
    else
      return {};
  }
};
template <class T>
struct Choices<std::optional<T>> {
  static std::vector<std::string> names() {
    auto names = Choices<T>::names();
    if (!names.empty()) names.emplace_back("null");
    return names;
  }
};

template <class T>
struct Codec<std::optional<T>> {
  static TypeName type() {
    return {Codec<T>::type().one + " or null", Codec<T>::type().many + " or null"};
  }
  static bool read(const Value& value, std::optional<T>& out, const Place& place) {
    out.reset();
    if (value.is_null()) return true;
    return Codec<T>::read(value, out.emplace(), place);
  }
  static Value write(const std::optional<T>& value, Write mode) {
    return value ? Codec<T>::write(*value, mode) : Value();
  }
  static std::vector<FieldInfo> children(const std::optional<T>& value) {
    return Codec<T>::children(value ? *value : T{});
  }
};

template <class T>
struct Codec<std::vector<T>> {
  static TypeName type() {
    return {"a list of " + Codec<T>::type().many, "lists of " + Codec<T>::type().many};
  }
  static bool read(const Value& value, std::vector<T>& out, const Place& place) {
    const List* list = value.as<List>();
    if (!list) return place.fail(value, "must be ", type().one, ", not ", value.shown());
    out.clear();
    bool good = true;
    for (std::size_t i = 0; i < list->size(); ++i) {
      T item{};
      good = Codec<T>::read((*list)[i], item, place.item(i)) && good;
      out.push_back(std::move(item));
    }
    return good;
  }
  static Value write(const std::vector<T>& items, Write mode) {
    List list;
    for (const T& item : items) list.push_back(Codec<T>::write(item, mode));
    return Value(std::move(list));
  }
  static std::vector<FieldInfo> children(const std::vector<T>&) {
    return with_prefix("[]", Codec<T>::children(T{}));
  }
};

template <class T, std::size_t N>
struct Codec<std::array<T, N>> : Leaf {
  static TypeName type() { return {str("a list of ", N, " ", Codec<T>::type().many), "lists"}; }
  static bool read(const Value& value, std::array<T, N>& out, const Place& place) {
    const List* list = value.as<List>();
    if (!list || list->size() != N)
      return place.fail(value, "must be ", type().one, ", not ",
                        list ? str("of ", list->size()) : value.shown());
    bool good = true;
    for (std::size_t i = 0; i < N; ++i)
      good = Codec<T>::read((*list)[i], out[i], place.item(i)) && good;
    return good;
  }
  static Value write(const std::array<T, N>& items, Write mode) {
    List list;
    for (const T& item : items) list.push_back(Codec<T>::write(item, mode));
    return Value(std::move(list));
  }
};

template <class T>
struct Codec<std::map<std::string, T>> {
  static TypeName type() {
    return {"a block of " + Codec<T>::type().many + " by name", "blocks by name"};
  }
  static bool read(const Value& value, std::map<std::string, T>& out, const Place& place) {
    static const Map kNone;
    const Map* map = value.is_null() ? &kNone : value.as<Map>();
    if (!map) return place.fail(value, "must be ", type().one, ", not ", value.shown());
    out.clear();
    bool good = true;
    for (const auto& [name, item] : *map)
      good = Codec<T>::read(item, out[name], place.key(name)) && good;
    return good;
  }
  static Value write(const std::map<std::string, T>& items, Write mode) {
    Map map;
    for (const auto& [name, item] : items) map[name] = Codec<T>::write(item, mode);
    return Value(std::move(map));
  }
  static std::vector<FieldInfo> children(const std::map<std::string, T>&) {
    return with_prefix(".NAME", Codec<T>::children(T{}));
  }
};

}  // namespace floe::config
