#include "floe/observe/sinks/protobuf.h"

#include <bit>

#include "floe/core/utf8.h"

namespace floe::observe {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

}  // namespace

void put_fixed(std::string& out, std::uint64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void Message::tag(int field, int wire_type) {
  put_varint(bytes_, static_cast<std::uint64_t>(field) << 3 | static_cast<unsigned>(wire_type));
}

Message& Message::integer(int field, std::int64_t value) {
  tag(field, kVarint);
  put_varint(bytes_, static_cast<std::uint64_t>(value));
  return *this;
}

Message& Message::number(int field, double value) {
  tag(field, kFixed64);
  put_fixed(bytes_, std::bit_cast<std::uint64_t>(value), 8);
  return *this;
}

Message& Message::number32(int field, float value) {
  tag(field, kFixed32);
  put_fixed(bytes_, std::bit_cast<std::uint32_t>(value), 4);
  return *this;
}

Message& Message::bytes(int field, std::string_view value) {
  tag(field, kBytes);
  put_varint(bytes_, value.size());
  bytes_ += value;
  return *this;
}

Message& Message::text(int field, const std::string& value) {
  return bytes(field, replace_invalid_utf8(value));
}

bool FieldReader::varint(std::uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

bool FieldReader::fixed(std::size_t num_bytes, std::uint64_t& value) {
  if (rest_.size() < num_bytes) return false;
  value = 0;
  for (std::size_t i = 0; i < num_bytes; ++i)
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
  rest_.remove_prefix(num_bytes);
  return true;
}

bool FieldReader::next(Field& field) {
  if (rest_.empty() || damaged_) return false;
  damaged_ = true;  // unless all goes well
  std::uint64_t tag = 0;
  if (!varint(tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff) return false;
  field = {.number = static_cast<int>(tag >> 3)};
  switch (tag & 7) {
    case kVarint:
      if (!varint(field.bits)) return false;
      break;
    case kFixed64:
      if (!fixed(8, field.bits)) return false;
      break;
    case kFixed32:
      if (!fixed(4, field.bits)) return false;
      break;
    case kBytes: {
      std::uint64_t size = 0;
      if (!varint(size) || size > rest_.size()) return false;
      field.is_bytes = true;
      field.bytes = rest_.substr(0, size);
      rest_.remove_prefix(size);
      break;
    }
    default: return false;
  }
  damaged_ = false;
  return true;
}

}  // namespace floe::observe
