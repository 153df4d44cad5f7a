// Inside of pickle values: the content that Value shares, by kind. For the pickle_*.cc only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "floe/io/torch_file/pickle.h"

namespace floe::pickle {

struct Chars : Node {  // text, bytes, big_integer
  explicit Chars(std::string chars) : chars(std::move(chars)) {}
  std::string chars;
};

struct Sequence : Node {  // list, tuple, set, frozen_set
  Items items;
  void clear() override { items.clear(); }
};

struct Mapping : Node {  // dict
  Entries entries;
  void clear() override { entries.clear(); }
};

struct Persistent : Node {
  Value id;
  void clear() override { id = Value(); }
};

// Why recursion over the value would be unsafe (a cycle, too deep), as a part of a sentence; empty
// when it is safe. Sets the height of every node that it reached.
std::string_view shape_problem(const Value& root);

template <class Content>
Content& as(const std::shared_ptr<Node>& node) {
  return static_cast<Content&>(*node);
}

// The opcodes of pickle that floe reads or writes (named as in Python's pickletools).
enum class Op : std::uint8_t {
  // structure
  proto = 0x80,
  frame = 0x95,
  stop = '.',
  mark = '(',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  // memo
  binput = 'q',
  long_binput = 'r',
  memoize = 0x94,
  binget = 'h',
  long_binget = 'j',
  // scalars
  none = 'N',
  newtrue = 0x88,
  newfalse = 0x89,
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  long1 = 0x8a,
  long4 = 0x8b,
  binfloat = 'G',
  // texts and bytes
  short_binunicode = 0x8c,
  binunicode = 'X',
  binunicode8 = 0x8d,
  short_binstring = 'U',
  binstring = 'T',
  short_binbytes = 'C',
  binbytes = 'B',
  binbytes8 = 0x8e,
  bytearray8 = 0x96,
  // containers
  empty_tuple = ')',
  tuple = 't',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  empty_list = ']',
  list = 'l',
  append = 'a',
  appends = 'e',
  empty_dict = '}',
  dict = 'd',
  setitem = 's',
  setitems = 'u',
  empty_set = 0x8f,
  additems = 0x90,
  frozenset = 0x91,
  // names and objects
  global = 'c',
  stack_global = 0x93,
  reduce = 'R',
  newobj = 0x81,
  newobj_ex = 0x92,
  build = 'b',
  binpersid = 'Q',
};

}  // namespace floe::pickle
