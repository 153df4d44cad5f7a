// What a pickle says, as data. Python's pickles are programs that import and call; here an import
// is a Global and a call is an Object that remembers what would be called with what. Nothing is
// looked up and nothing runs.
//
//   const pickle::Value root = pickle::read(bytes, "meta.pt");
//   if (const pickle::Value* epoch = root.find("epoch")) start = epoch->integer();
//
// Values are handles: a copy shares the content, as the memo of a pickle does, so a file that names
// one list a million times costs one list. Content never changes once it is built or read, holds no
// cycles, and what read() returns is at most kMostDepth deep: recursion over it is safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace floe::pickle {

enum class Kind {
  none,
  boolean,
  integer,
  big_integer,  // outside 64 bits; kept as bytes: little-endian two's complement
  real,
  text,
  bytes,
  list,
  tuple,
  dict,
  set,
  frozen_set,
  persistent,  // a reference that the pickle's owner resolves, such as the storage of a tensor
  global,      // an importable name
  object       // the result of a call that does not happen
};

// "a list", "an integer"
std::string_view name_of(Kind kind);

constexpr int kMostDepth = 500;  // of nesting; Python's own pickler reaches about 300

class Value;
using Items = std::vector<Value>;
using Entries = std::vector<std::pair<Value, Value>>;

struct Node;
struct GlobalName;
struct Object;

class Value {
 public:
  Value() = default;  // None
  Value(bool value) : kind_(Kind::boolean), integer_(value) {}
  Value(int value) : Value(std::int64_t{value}) {}
  Value(std::int64_t value) : kind_(Kind::integer), integer_(value) {}
  Value(double value) : kind_(Kind::real), real_(value) {}
  Value(std::string text);  // UTF-8
  Value(const char* text) : Value(std::string(text)) {}

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_none() const { return kind_ == Kind::none; }

  // Each throws DataError that names both kinds when this is something else.
  bool boolean() const;
  std::int64_t integer() const;
  double real() const;               // of an integer too
  const std::string& text() const;   // str
  const std::string& bytes() const;  // bytes, and the bytes of a big integer
  const Items& items() const;        // list, tuple, set; and an object with list items
  // Of a dict, in its order; and of an object with dict items (OrderedDict).
  const Entries& entries() const;
  const Value& persistent_id() const;
  const GlobalName& global() const;
  const Object& object() const;

  bool is_global(std::string_view module, std::string_view name) const;
  // True when this is a mapping: a dict, or an object that was filled like one.
  bool has_entries() const;
  // The value under a text key of a mapping, the last if there are several; null when there is none
  // or this is no mapping.
  const Value* find(std::string_view key) const;
  // The same, in the state of an object.
  const Value* attribute(std::string_view name) const;

  // The shared content; null for None, booleans and numbers. Equal pointers are the same Python
  // object.
  const Node* identity() const { return node_.get(); }

 private:
  friend class Reader;
  friend struct Build;
  Value(Kind kind, std::shared_ptr<Node> node) : kind_(kind), node_(std::move(node)) {}
  void expect(bool fits, std::string_view what) const;

  Kind kind_ = Kind::none;
  union {
    std::int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<Node> node_;
};

// Content by kind; only Value and the reader look at them as nodes.
struct Node {
  virtual ~Node() = default;
  // Lets go of all children, so that long chains and cycles can be freed one by one.
  virtual void clear() {}
  mutable int height = 0;  // of what lies below, once the reader has checked it
};

struct GlobalName : Node {
  std::string module, name;
};

// callable(*args, **kwargs) or callable.__new__(callable, *args), then filled: list items appended,
// dict items set, state given to __setstate__ or __dict__.
struct Object : Node {
  enum class How { reduce, new_object };
  How how = How::reduce;
  Value callable, args, kwargs;  // kwargs is None unless there are any
  Items items;
  Entries entries;
  bool has_state = false;
  Value state;

  bool calls(std::string_view module, std::string_view name) const {
    return callable.is_global(module, name);
  }
  void clear() override;
};

// Making values to write.
Value bytes(std::string bytes);
Value list(Items items);
Value tuple(Items items);
Value dict(Entries entries);
Value set(Items items);
Value global(std::string module, std::string name);
Value persistent(Value id);
Value reduce(Value callable, Items args);
Value new_object(Value callable, Items args);
// With a state; for dataclasses a dict of the fields.
Value new_object(Value callable, Items args, Value state);
// collections.OrderedDict
Value ordered_dict(Entries entries);

// A short form for messages: {"epoch": 3, ...}
std::string shown(const Value& value);

// Reading pickles of protocols 2 to 5 without running them.
//
// Everything is checked: every length against the bytes that are there, every opcode against the
// stack. Memory stays within a fixed multiple of the input. What is refused: opcodes of protocols 0
// and 1 (but GLOBAL), the extension registry, out-of-band buffers, cycles, and nesting deeper than
// kMostDepth. Each defect is one DataError that names the file, the byte and the opcode.
//
// The value of the one pickle that `bytes` hold; `file` is for messages.
Value read(std::string_view bytes, const std::string& file);

// Writing pickles that every Python 3 reads, and torch.load(weights_only=True) as far as it knows
// the names in them.
//
// Protocol 2, which torch.save uses. Values that are shared are written once and stay one object in
// Python; so are equal texts and global names.
//
// Throws Error for a text that is not UTF-8 and for values nested deeper than kMostDepth.
std::string write(const Value& value);

}  // namespace floe::pickle
