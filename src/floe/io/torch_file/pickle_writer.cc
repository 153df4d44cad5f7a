#include <bit>
#include <limits>
#include <unordered_map>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/pickle_node.h"

namespace floe::pickle {
namespace {

// Protocol 2 has no bytes and no sets: they are calls, which Python writes the same way.
Value bytes_call(const std::string& bytes) {
  std::string latin;  // each byte as the character of its number, in UTF-8
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      latin += c;
    } else {
      latin += static_cast<char>(0xc0 | byte >> 6);
      latin += static_cast<char>(0x80 | (byte & 0x3f));
    }
  }
  return reduce(global("_codecs", "encode"), {latin, "latin1"});
}

Value set_call(const Value& set) {
  return reduce(global("__builtin__", set.is(Kind::set) ? "set" : "frozenset"),
                {list(set.items())});
}

bool is_line(const std::string& text) { return text.find('\n') == std::string::npos; }

class NodeWriter {
 public:
  std::string write(const Value& root) {
    count(root);
    op(Op::proto);
    number<std::uint8_t>(2);
    emit(root);
    op(Op::stop);
    return std::move(out_);
  }

 private:
  // The value as protocol 2 has it: the same one for equal texts and names, a call for bytes and
  // sets.
  const Value& canonical(const Value& value) {
    switch (value.kind()) {
      case Kind::text: return texts_.try_emplace(value.text(), value).first->second;
      case Kind::global:
        return globals_.try_emplace(value.global().module + '\n' + value.global().name, value)
            .first->second;
      case Kind::bytes:
      case Kind::set:
      case Kind::frozen_set: {
        const auto found = calls_.find(value.identity());
        if (found != calls_.end()) return found->second;
        return calls_
            .emplace(value.identity(),
                     value.is(Kind::bytes) ? bytes_call(value.bytes()) : set_call(value))
            .first->second;
      }
      default:
        return value;  // NOLINT(bugprone-return-const-ref-from-parameter): it lives in the tree
    }
  }

  // First pass: how often each value is used.
  void count(const Value& given) {
    const Value& value = canonical(given);
    if (!value.identity() || ++uses_[value.identity()] > 1) return;
    const Nesting nesting(*this);
    switch (value.kind()) {
      case Kind::list:
      case Kind::tuple: count_all(value.items()); break;
      case Kind::dict: count_all(value.entries()); break;
      case Kind::persistent: count(value.persistent_id()); break;
      case Kind::object: {
        const Object& object = value.object();
        count(object.callable), count(object.args), count(object.kwargs), count(object.state);
        count_all(object.items), count_all(object.entries);
        break;
      }
      default: break;
    }
  }
  void count_all(const Items& items) {
    for (const Value& item : items) count(item);
  }
  void count_all(const Entries& entries) {
    for (const auto& [key, item] : entries) count(key), count(item);
  }

  // Second pass.
  void emit(const Value& given) {
    const Value& value = canonical(given);
    if (const auto memo = memo_.find(value.identity()); memo != memo_.end())
      return memo_op(Op::binget, Op::long_binget, memo->second);
    const Nesting nesting(*this);
    switch (value.kind()) {
      case Kind::none: op(Op::none); break;
      case Kind::boolean: op(value.boolean() ? Op::newtrue : Op::newfalse); break;
      case Kind::integer: emit_integer(value.integer()); break;
      case Kind::big_integer: emit_long(value.bytes()); break;
      case Kind::real: emit_real(value.real()); break;
      case Kind::text: emit_text(value.text()), put(value); break;
      case Kind::list: op(Op::empty_list), put(value), emit_items(value.items()); break;
      case Kind::tuple: emit_tuple(value.items()), put(value); break;
      case Kind::dict: op(Op::empty_dict), put(value), emit_entries(value.entries()); break;
      case Kind::persistent:
        emit(value.persistent_id());
        op(Op::binpersid);
        put(value);
        break;
      case Kind::global:
        require(is_line(value.global().module) && is_line(value.global().name),
                "a global that is to be pickled has a line break in its name");
        op(Op::global);
        out_ += value.global().module + '\n' + value.global().name + '\n';
        put(value);
        break;
      case Kind::object: emit_object(value); break;
      case Kind::bytes:
      case Kind::set:
      case Kind::frozen_set: break;  // canonical() made them calls
    }
  }

  void emit_integer(std::int64_t value) {
    if (value >= 0 && value <= 0xff) {
      op(Op::binint1);
      number(static_cast<std::uint8_t>(value));
    } else if (value >= std::numeric_limits<std::int32_t>::min() &&
               value <= std::numeric_limits<std::int32_t>::max()) {
      op(Op::binint);
      number(static_cast<std::int32_t>(value));
    } else {
      emit_long({reinterpret_cast<const char*>(&value), sizeof value});
    }
  }

  void emit_long(const std::string& bytes) {
    if (bytes.size() <= 0xff) {
      op(Op::long1);
      number(static_cast<std::uint8_t>(bytes.size()));
    } else {
      op(Op::long4);
      number(length_of(bytes));
    }
    out_ += bytes;
  }

  void emit_real(double value) {
    op(Op::binfloat);
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift);
  }

  void emit_text(const std::string& text) {
    require(is_utf8(text), "a text that is to be pickled is not UTF-8");
    op(Op::binunicode);
    number(length_of(text));
    out_ += text;
  }

  void emit_tuple(const Items& items) {
    if (items.empty()) return op(Op::empty_tuple);
    if (items.size() > 3) op(Op::mark);
    for (const Value& item : items) emit(item);
    constexpr Op kOps[] = {Op::tuple1, Op::tuple2, Op::tuple3};
    op(items.size() > 3 ? Op::tuple : kOps[items.size() - 1]);
  }

  void emit_items(const Items& items) {
    if (items.empty()) return;
    op(Op::mark);
    for (const Value& item : items) emit(item);
    op(Op::appends);
  }

  void emit_entries(const Entries& entries) {
    if (entries.empty()) return;
    op(Op::mark);
    for (const auto& [key, item] : entries) emit(key), emit(item);
    op(Op::setitems);
  }

  void emit_object(const Value& value) {
    const Object& object = value.object();
    emit(object.callable);
    emit(object.args);
    if (!object.kwargs.is_none()) {
      emit(object.kwargs);
      op(Op::newobj_ex);
    } else {
      op(object.how == Object::How::reduce ? Op::reduce : Op::newobj);
    }
    put(value);
    emit_items(object.items);
    emit_entries(object.entries);
    if (object.has_state) {
      emit(object.state);
      op(Op::build);
    }
  }

  void put(const Value& value) {
    if (uses_[value.identity()] < 2) return;
    const auto index = static_cast<std::uint32_t>(memo_.size());
    memo_.emplace(value.identity(), index);
    memo_op(Op::binput, Op::long_binput, index);
  }

  void memo_op(Op small, Op large, std::uint32_t index) {
    op(index <= 0xff ? small : large);
    if (index <= 0xff)
      number(static_cast<std::uint8_t>(index));
    else
      number(index);
  }

  static std::uint32_t length_of(const std::string& bytes) {
    require(bytes.size() <= std::numeric_limits<std::uint32_t>::max(),
            "a text of more than 4 GiB cannot be pickled");
    return static_cast<std::uint32_t>(bytes.size());
  }

  void op(Op code) { out_ += static_cast<char>(code); }
  template <class Number>
  void number(Number value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  // One level of recursion.
  struct Nesting {
    explicit Nesting(NodeWriter& writer) : writer(writer) {
      require(++writer.depth_ <= kMostDepth, "a value that is to be pickled is nested deeper than ",
              kMostDepth, " levels");
    }
    ~Nesting() { --writer.depth_; }
    NodeWriter& writer;
  };

  std::string out_;
  std::unordered_map<std::string, Value> texts_, globals_;
  std::unordered_map<const Node*, Value> calls_;
  std::unordered_map<const Node*, int> uses_;
  std::unordered_map<const Node*, std::uint32_t> memo_;
  int depth_ = 0;
};

}  // namespace

std::string write(const Value& value) { return NodeWriter().write(value); }

}  // namespace floe::pickle
