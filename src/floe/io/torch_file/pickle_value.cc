#include <algorithm>
#include <array>
#include <charconv>

#include "floe/core/error.h"
#include "floe/core/str.h"
#include "floe/io/file/json_text.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/pickle_node.h"

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

// Stops adding once the text is long enough for a message.
class Printer {
 public:
  std::string print(const Value& value) {
    add(value);
    if (text_.size() <= kMost) return text_;
    std::size_t end = kMost;
    while (end > 0 && (static_cast<unsigned char>(text_[end]) & 0xc0) == 0x80)
      --end;  // whole UTF-8
    return text_.substr(0, end) + "...";
  }

 private:
  static constexpr std::size_t kMost = 200;
  bool full() const { return text_.size() > kMost / 2; }

  void add(const Value& value) {
    switch (value.kind()) {
      case Kind::none: text_ += "None"; break;
      case Kind::boolean: text_ += value.boolean() ? "True" : "False"; break;
      case Kind::integer: text_ += std::to_string(value.integer()); break;
      case Kind::big_integer:
        text_ += "an integer of " + std::to_string(value.bytes().size()) + " bytes";
        break;
      case Kind::real: add_real(value.real()); break;
      case Kind::text: text_ += quoted(value.text()); break;
      case Kind::bytes: text_ += std::to_string(value.bytes().size()) + " bytes"; break;
      case Kind::list: add_items("[", value.items(), "]"); break;
      case Kind::tuple:
        add_items("(", value.items(), value.items().size() == 1 ? ",)" : ")");
        break;
      case Kind::set:
      case Kind::frozen_set: add_items("{", value.items(), "}"); break;
      case Kind::dict: add_entries(value.entries()); break;
      case Kind::persistent:
        text_ += "persistent ";
        add(value.persistent_id());
        break;
      case Kind::global: text_ += value.global().module + "." + value.global().name; break;
      case Kind::object:
        add(value.object().callable);
        add(value.object().args);
        break;
    }
  }

  void add_real(double real) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, real).ptr;
    text_.append(digits, end);
  }

  void add_items(const char* open, const Items& items, const char* close) {
    text_ += open;
    bool first = true;
    for (const Value& item : items) {
      if (!first) text_ += ", ";
      first = false;
      if (full()) {
        text_ += "...";
        break;
      }
      add(item);
    }
    text_ += close;
  }

  void add_entries(const Entries& entries) {
    text_ += "{";
    bool first = true;
    for (const auto& [key, value] : entries) {
      if (!first) text_ += ", ";
      first = false;
      if (full()) {
        text_ += "...";
        break;
      }
      add(key);
      text_ += ": ";
      add(value);
    }
    text_ += "}";
  }

  std::string text_;
};

static_assert(kMostDepth == 500, "a message below says so");

constexpr int kEntered = -1;  // as a height: the node is being looked at

template <class Visit>
void for_each_child(const Value& value, const Visit& visit) {
  switch (value.kind()) {
    case Kind::list:
    case Kind::tuple:
    case Kind::set:
    case Kind::frozen_set:
      for (const Value& item : value.items()) visit(item);
      break;
    case Kind::dict:
      for (const auto& [key, item] : value.entries()) visit(key), visit(item);
      break;
    case Kind::persistent: visit(value.persistent_id()); break;
    case Kind::object: {
      const Object& object = value.object();
      visit(object.callable), visit(object.args), visit(object.kwargs), visit(object.state);
      for (const Value& item : object.items) visit(item);
      for (const auto& [key, item] : object.entries) visit(key), visit(item);
      break;
    }
    default: break;
  }
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

std::string shown(const Value& value) { return Printer().print(value); }

// Depth first with an own stack: each node is entered once, and left when all below it are done.
// One that is met again before it was left lies on a cycle.
std::string_view shape_problem(const Value& root) {
  std::vector<const Value*> path{&root};
  while (!path.empty()) {
    const Value& value = *path.back();
    const Node* node = value.identity();
    if (!node || node->height > 0) {
      path.pop_back();
    } else if (node->height == 0) {
      node->height = kEntered;
      bool cycle = false;
      for_each_child(value, [&](const Value& child) {
        const Node* below = child.identity();
        cycle = cycle || (below && below->height == kEntered);
        if (below && below->height == 0) path.push_back(&child);
      });
      if (cycle) return "holds a value that contains itself";
    } else {
      int below = 0;
      for_each_child(value, [&](const Value& child) {
        if (const Node* child_node = child.identity()) below = std::max(below, child_node->height);
      });
      if (below >= kMostDepth) return "is nested too deeply: floe reads 500 levels";
      node->height = below + 1;
      path.pop_back();
    }
  }
  return "";
}

}  // namespace floe::pickle
