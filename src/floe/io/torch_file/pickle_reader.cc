#include <bit>
#include <cstring>
#include <unordered_map>

#include "floe/core/error.h"
#include "floe/core/utf8.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/pickle_node.h"

namespace floe::pickle {

// Note [Nodes while reading]
// A pickle can build chains of any length and cycles (through the memo). Until the result is known
// to be shallow and free of cycles nothing may recurse over it, destructors included. So the reader
// keeps every node that can have children, and when reading fails it empties them one by one.
class Reader {
 public:
  Reader(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}
  ~Reader() {
    for (const auto& node : parents_) node->clear();
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Value read() {
    while (step()) {
    }
    check(stack_.size() == 1 && marks_.empty(), "ends with ", stack_.size(),
          " values on the stack instead of one");
    const std::string_view problem = shape_problem(stack_[0]);
    check(problem.empty(), problem);
    for (const auto& node : parents_)
      if (node->height == 0) node->clear();  // made and thrown away: its depth was not checked
    parents_.clear();
    return std::move(stack_[0]);
  }

 private:
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    require<DataError>(condition, "'", file_, "': the pickle ", parts..., " (opcode 0x", std::hex,
                       static_cast<int>(op_), std::dec, " at byte ", op_at_, " of ", bytes_.size(),
                       ")");
  }

  // Input.

  std::string_view take(std::uint64_t count) {
    check(count <= bytes_.size() - at_, "is cut off: it needs ", count, " more bytes, but ",
          bytes_.size() - at_, " are left");
    const auto part = bytes_.substr(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return part;
  }

  template <class Number>
  Number number() {
    static_assert(std::endian::native == std::endian::little);
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view line() {
    const auto end = bytes_.find('\n', at_);
    check(end != std::string_view::npos, "is cut off inside a name");
    const auto text = take(end - at_);
    ++at_;
    return text;
  }

  // Stack. What lies below the topmost mark cannot be popped.

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  Value pop() {
    check(stack_.size() > floor(), "takes a value from an empty stack");
    Value value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }

  Value& top() {
    check(stack_.size() > floor(), "needs a value on an empty stack");
    return stack_.back();
  }

  void push(Value value) { stack_.push_back(std::move(value)); }

  Items pop_to_mark() {
    check(!marks_.empty(), "has no mark where one is needed");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    Items items(std::make_move_iterator(begin), std::make_move_iterator(stack_.end()));
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  // Nodes.

  template <class Content>
  Content& push_parent(Kind kind) {
    auto node = std::make_shared<Content>();
    parents_.push_back(node);
    Content& content = *node;
    push(Value(kind, std::move(node)));
    return content;
  }

  void push_chars(Kind kind, std::string_view chars) {
    push(Value(kind, std::make_shared<Chars>(std::string(chars))));
  }

  void push_text(std::string_view chars) {
    check(is_utf8(chars), "has a text that is not UTF-8");
    push_chars(Kind::text, chars);
  }

  void push_sequence(Kind kind, Items items) {
    push_parent<Sequence>(kind).items = std::move(items);
  }

  void push_last(std::size_t count) {  // a tuple of the last values
    check(stack_.size() - floor() >= count, "makes a tuple of ", count, " from fewer values");
    marks_.push_back(stack_.size() - count);
    push_sequence(Kind::tuple, pop_to_mark());
  }

  void push_integer(std::string_view digits) {  // little-endian two's complement
    const bool negative = !digits.empty() && (digits.back() & 0x80) != 0;
    const char sign = negative ? '\xff' : '\0';
    // Python writes no needless sign bytes, but nothing forbids them.
    while (digits.size() > 8 && digits.back() == sign &&
           ((digits[digits.size() - 2] & 0x80) != 0) == negative)
      digits.remove_suffix(1);
    if (digits.size() > 8) return push_chars(Kind::big_integer, digits);
    std::int64_t value = negative ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    push(Value(value));
  }

  void push_real(std::string_view big_endian) {
    std::uint64_t bits = 0;
    for (const char c : big_endian) bits = bits << 8 | static_cast<unsigned char>(c);
    push(Value(std::bit_cast<double>(bits)));
  }

  void push_global(std::string_view module, std::string_view name) {
    for (const std::string_view part : {module, name}) {
      check(!part.empty() && is_utf8(part), "imports a name that is none");
      for (const char c : part)
        check(static_cast<unsigned char>(c) > ' ' && c != '\x7f', "imports a name that is none");
    }
    auto node = std::make_shared<GlobalName>();
    node->module = module;
    node->name = name;
    push(Value(Kind::global, std::move(node)));
  }

  void stack_global() {
    const Value name = pop(), module = pop();
    check(name.is(Kind::text) && module.is(Kind::text), "imports a name that is no text");
    push_global(module.text(), name.text());
  }

  void call(Object::How how, Value callable, Value args, Value kwargs = {}) {
    check(args.is(Kind::tuple), "calls with ", name_of(args.kind()), " instead of a tuple");
    auto& object = push_parent<Object>(Kind::object);
    object.how = how;
    object.callable = std::move(callable);
    object.args = std::move(args);
    object.kwargs = std::move(kwargs);
  }

  void call_top(Object::How how) {
    Value args = pop(), callable = pop();
    call(how, std::move(callable), std::move(args));
  }

  void call_top_with_keywords() {
    Value kwargs = pop(), args = pop(), callable = pop();
    check(kwargs.is(Kind::dict), "calls with ", name_of(kwargs.kind()), " as keyword arguments");
    if (kwargs.entries().empty()) kwargs = Value();
    call(Object::How::new_object, std::move(callable), std::move(args), std::move(kwargs));
  }

  void build() {
    Value state = pop();
    check(top().is(Kind::object), "gives a state to ", name_of(top().kind()));
    auto& object = as<Object>(top().node_);
    check(!object.has_state, "gives an object two states");
    object.has_state = true;
    object.state = std::move(state);
  }

  void append(Items items) {
    Value& target = top();
    check(target.is(Kind::list) || target.is(Kind::object), "appends to ", name_of(target.kind()));
    Items& to =
        target.is(Kind::list) ? as<Sequence>(target.node_).items : as<Object>(target.node_).items;
    to.insert(to.end(), std::make_move_iterator(items.begin()),
              std::make_move_iterator(items.end()));
  }

  void add_to_set(Items items) {
    check(top().is(Kind::set), "adds to ", name_of(top().kind()), " as to a set");
    Items& to = as<Sequence>(top().node_).items;
    to.insert(to.end(), std::make_move_iterator(items.begin()),
              std::make_move_iterator(items.end()));
  }

  void set_items(Items pairs) {
    Value& target = top();
    check(target.is(Kind::dict) || target.is(Kind::object), "sets items of ",
          name_of(target.kind()));
    check(pairs.size() % 2 == 0, "has a key without a value");
    Entries& to = target.is(Kind::dict) ? as<Mapping>(target.node_).entries
                                        : as<Object>(target.node_).entries;
    for (std::size_t i = 0; i < pairs.size(); i += 2)
      to.emplace_back(std::move(pairs[i]), std::move(pairs[i + 1]));
  }

  void set_item() {
    Value value = pop(), key = pop();
    set_items({std::move(key), std::move(value)});
  }

  void push_dict(Items pairs) {
    push_parent<Mapping>(Kind::dict);
    set_items(std::move(pairs));
  }

  void push_persistent() {
    Value id = pop();
    push_parent<Persistent>(Kind::persistent).id = std::move(id);
  }

  void put(std::uint32_t index) { memo_[index] = top(); }

  void get(std::uint32_t index) {
    const auto found = memo_.find(index);
    check(found != memo_.end(), "takes memo ", index, ", which was never put");
    push(found->second);
  }

  void protocol() {
    const int version = number<std::uint8_t>();
    check(version >= 2 && version <= 5, "has protocol ", version, "; floe reads 2 to 5");
  }

  // One opcode; false after the last.
  bool step() {
    op_at_ = at_;
    check(at_ < bytes_.size(), "is cut off: it has no end");
    op_ = number<std::uint8_t>();
    switch (static_cast<Op>(op_)) {
      case Op::proto: protocol(); break;
      case Op::frame: number<std::uint64_t>(); break;  // a hint for buffered readers
      case Op::stop: return false;
      case Op::mark: marks_.push_back(stack_.size()); break;
      case Op::pop: pop_value_or_mark(); break;
      case Op::pop_mark: pop_to_mark(); break;
      case Op::dup: push(Value(top())); break;

      case Op::binput: put(number<std::uint8_t>()); break;
      case Op::long_binput: put(number<std::uint32_t>()); break;
      case Op::memoize: put(static_cast<std::uint32_t>(memo_.size())); break;
      case Op::binget: get(number<std::uint8_t>()); break;
      case Op::long_binget: get(number<std::uint32_t>()); break;

      case Op::none: push(Value()); break;
      case Op::newtrue: push(Value(true)); break;
      case Op::newfalse: push(Value(false)); break;
      case Op::binint: push(Value(std::int64_t{number<std::int32_t>()})); break;
      case Op::binint1: push(Value(std::int64_t{number<std::uint8_t>()})); break;
      case Op::binint2: push(Value(std::int64_t{number<std::uint16_t>()})); break;
      case Op::long1: push_integer(take(number<std::uint8_t>())); break;
      case Op::long4: push_integer(take(number<std::uint32_t>())); break;
      case Op::binfloat: push_real(take(8)); break;

      case Op::short_binunicode:
      case Op::short_binstring: push_text(take(number<std::uint8_t>())); break;
      case Op::binunicode:
      case Op::binstring: push_text(take(number<std::uint32_t>())); break;
      case Op::binunicode8: push_text(take(number<std::uint64_t>())); break;
      case Op::short_binbytes: push_chars(Kind::bytes, take(number<std::uint8_t>())); break;
      case Op::binbytes: push_chars(Kind::bytes, take(number<std::uint32_t>())); break;
      case Op::binbytes8:
      case Op::bytearray8: push_chars(Kind::bytes, take(number<std::uint64_t>())); break;

      case Op::empty_tuple: push_sequence(Kind::tuple, {}); break;
      case Op::tuple: push_sequence(Kind::tuple, pop_to_mark()); break;
      case Op::tuple1: push_last(1); break;
      case Op::tuple2: push_last(2); break;
      case Op::tuple3: push_last(3); break;
      case Op::empty_list: push_sequence(Kind::list, {}); break;
      case Op::list: push_sequence(Kind::list, pop_to_mark()); break;
      case Op::append: append({pop()}); break;
      case Op::appends: append(pop_to_mark()); break;
      case Op::empty_dict: push_dict({}); break;
      case Op::dict: push_dict(pop_to_mark()); break;
      case Op::setitem: set_item(); break;
      case Op::setitems: set_items(pop_to_mark()); break;
      case Op::empty_set: push_sequence(Kind::set, {}); break;
      case Op::additems: add_to_set(pop_to_mark()); break;
      case Op::frozenset: push_sequence(Kind::frozen_set, pop_to_mark()); break;

      case Op::global: {
        const auto module = line();
        push_global(module, line());
        break;
      }
      case Op::stack_global: stack_global(); break;
      case Op::reduce: call_top(Object::How::reduce); break;
      case Op::newobj: call_top(Object::How::new_object); break;
      case Op::newobj_ex: call_top_with_keywords(); break;
      case Op::build: build(); break;
      case Op::binpersid: push_persistent(); break;
      default: check(false, "uses an opcode that floe does not read");
    }
    return true;
  }

  void pop_value_or_mark() {
    if (!marks_.empty() && marks_.back() == stack_.size())
      marks_.pop_back();
    else
      pop();
  }

  std::string_view bytes_;
  const std::string& file_;
  std::size_t at_ = 0, op_at_ = 0;
  std::uint8_t op_ = 0;
  Items stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, Value> memo_;
  std::vector<std::shared_ptr<Node>> parents_;
};

Value read(std::string_view bytes, const std::string& file) { return Reader(bytes, file).read(); }

}  // namespace floe::pickle
