#include "floe/io/pickle_value.h"

#include <algorithm>
#include <array>

#include "floe/core/error.h"
#include "floe/io/json_text.h"
#include "floe/io/pickle_node.h"

namespace floe::pickle {
namespace {

constexpr std::array<std::string_view, 15> kNames{
    "None",   "a boolean",   "an integer",      "a big integer", "a float",
    "a text", "bytes",       "a list",          "a tuple",       "a dict",
    "a set",  "a frozenset", "a persistent id", "a global",      "an object"};

const Value* find_in(const Entries& entries, std::string_view key) {
  const auto found = std::find_if(entries.rbegin(), entries.rend(), [&](const auto& entry) {
    return entry.first.is(Kind::text) && entry.first.text() == key;
  });
  return found == entries.rend() ? nullptr : &found->second;
}

}  // namespace

std::string_view name_of(Kind kind) { return kNames.at(static_cast<std::size_t>(kind)); }

Value::Value(std::string text) : Value(Kind::text, std::make_shared<Chars>(std::move(text))) {}

void Value::expect(bool fits, std::string_view what) const {
  if (!fits)  // the text is made only then
    throw DataError(
        str("a pickle has ", name_of(kind_), " where ", what, " is expected: ", shown(*this)));
}

bool Value::boolean() const {
  expect(is(Kind::boolean), "a boolean");
  return integer_ != 0;
}

std::int64_t Value::integer() const {
  expect(is(Kind::integer), "an integer");
  return integer_;
}

double Value::real() const {
  expect(is(Kind::real) || is(Kind::integer), "a number");
  return is(Kind::real) ? real_ : static_cast<double>(integer_);
}

const std::string& Value::text() const {
  expect(is(Kind::text), "a text");
  return as<Chars>(node_).chars;
}

const std::string& Value::bytes() const {
  expect(is(Kind::bytes) || is(Kind::big_integer), "bytes");
  return as<Chars>(node_).chars;
}

const Items& Value::items() const {
  if (is(Kind::object)) return object().items;
  expect(is(Kind::list) || is(Kind::tuple) || is(Kind::set) || is(Kind::frozen_set), "a list");
  return as<Sequence>(node_).items;
}

const Entries& Value::entries() const {
  if (is(Kind::object)) return object().entries;
  expect(is(Kind::dict), "a dict");
  return as<Mapping>(node_).entries;
}

const Value& Value::persistent_id() const {
  expect(is(Kind::persistent), "a persistent id");
  return as<Persistent>(node_).id;
}

const GlobalName& Value::global() const {
  expect(is(Kind::global), "a global");
  return as<GlobalName>(node_);
}

const Object& Value::object() const {
  expect(is(Kind::object), "an object");
  return as<Object>(node_);
}

bool Value::is_global(std::string_view module, std::string_view name) const {
  return is(Kind::global) && global().module == module && global().name == name;
}

bool Value::has_entries() const {
  if (is(Kind::dict)) return true;
  return is(Kind::object) &&
         (!object().entries.empty() || object().calls("collections", "OrderedDict") ||
          object().calls("collections", "defaultdict"));
}

const Value* Value::find(std::string_view key) const {
  return has_entries() ? find_in(entries(), key) : nullptr;
}

const Value* Value::attribute(std::string_view name) const {
  return is(Kind::object) && object().state.is(Kind::dict) ? object().state.find(name) : nullptr;
}

void Object::clear() {
  callable = args = kwargs = state = Value();
  items.clear();
  entries.clear();
}

struct Build {
  template <class Content>
  static Value with(Kind kind, Content content) {
    return Value(kind, std::make_shared<Content>(std::move(content)));
  }
  static Value sequence(Kind kind, Items items) {
    Sequence node;
    node.items = std::move(items);
    return with(kind, std::move(node));
  }
  static Value object(Object::How how, Value callable, Items args) {
    Object node;
    node.how = how;
    node.callable = std::move(callable);
    node.args = tuple(std::move(args));
    return with(Kind::object, std::move(node));
  }
};

Value bytes(std::string bytes) { return Build::with(Kind::bytes, Chars(std::move(bytes))); }
Value list(Items items) { return Build::sequence(Kind::list, std::move(items)); }
Value tuple(Items items) { return Build::sequence(Kind::tuple, std::move(items)); }
Value set(Items items) { return Build::sequence(Kind::set, std::move(items)); }

Value dict(Entries entries) {
  Mapping node;
  node.entries = std::move(entries);
  return Build::with(Kind::dict, std::move(node));
}

Value global(std::string module, std::string name) {
  GlobalName node;
  node.module = std::move(module);
  node.name = std::move(name);
  return Build::with(Kind::global, std::move(node));
}

Value persistent(Value id) {
  Persistent node;
  node.id = std::move(id);
  return Build::with(Kind::persistent, std::move(node));
}

Value reduce(Value callable, Items args) {
  return Build::object(Object::How::reduce, std::move(callable), std::move(args));
}

Value new_object(Value callable, Items args) {
  return Build::object(Object::How::new_object, std::move(callable), std::move(args));
}

Value new_object(Value callable, Items args, Value state) {
  Object node;
  node.how = Object::How::new_object;
  node.callable = std::move(callable);
  node.args = tuple(std::move(args));
  node.has_state = true;
  node.state = std::move(state);
  return Build::with(Kind::object, std::move(node));
}

Value ordered_dict(Entries entries) {
  Object node;
  node.callable = global("collections", "OrderedDict");
  node.args = tuple({});
  node.entries = std::move(entries);
  return Build::with(Kind::object, std::move(node));
}

}  // namespace floe::pickle
