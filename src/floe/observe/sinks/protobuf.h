// The wire format of protobuf messages, as far as event files and W&B runs need it: fields go out
// in the order of the calls, and come back as they stand in the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace floe::observe {

// A message under construction. Field numbers are those of the .proto file.
class Message {
 public:
  Message& integer(int field, std::int64_t value);  // int32, int64, bool, enum
  Message& number(int field, double value);         // double
  Message& number32(int field, float value);        // float
  Message& bytes(int field, std::string_view value);
  // `string` must be UTF-8, else no reader takes the message: bad bytes become U+FFFD.
  Message& text(int field, const std::string& value);
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }

  const std::string& encoded() const { return bytes_; }

 private:
  void tag(int field, int wire_type);
  std::string bytes_;
};

// One field of an encoded message.
struct Field {
  int number = 0;
  bool is_bytes = false;   // a string, bytes or a message
  std::string_view bytes;  // of the message that was given
  std::uint64_t bits = 0;  // of a varint, fixed64 or fixed32
};

// Goes through the fields of bytes that need not be a message at all.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}
  // False at the end, and where the bytes are no field: damaged() tells them apart.
  bool next(Field& field);
  bool damaged() const { return damaged_; }

 private:
  bool varint(std::uint64_t& value);
  bool fixed(std::size_t num_bytes, std::uint64_t& value);
  std::string_view rest_;
  bool damaged_ = false;
};

// Appends so many bytes of a number, the lowest first.
void put_fixed(std::string& out, std::uint64_t value, int num_bytes);

}  // namespace floe::observe
