// The records of the zip format (PKWARE's APPNOTE), as far as stored entries need them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace floe::zip {

static_assert(std::endian::native == std::endian::little, "zip records are little-endian");

constexpr std::uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEnd = 0x06054b50,
                        kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr std::int64_t kLocalHeaderBytes = 30, kCentralHeaderBytes = 46, kEndBytes = 22,
                       kEnd64Bytes = 56, kEnd64LocatorBytes = 20;
constexpr std::uint16_t kExtra64 = 0x0001;  // the extra field with 64-bit sizes and offset
constexpr std::uint16_t kStored = 0;
constexpr std::uint16_t kEncrypted = 0x0001, kUtf8 = 0x0800;  // flags
// In a 16- or 32-bit field: the value is in the zip64 record.
constexpr std::uint16_t kIn64Short = 0xffff;
constexpr std::uint32_t kIn64 = 0xffffffff;

// The fields of a record, one after another. The caller has checked that the record is long enough.
class Fields {
 public:
  explicit Fields(std::string_view record) : record_(record) {}
  std::uint16_t u16() { return next<std::uint16_t>(); }
  std::uint32_t u32() { return next<std::uint32_t>(); }
  std::uint64_t u64() { return next<std::uint64_t>(); }
  void skip(std::size_t bytes) { at_ += bytes; }

 private:
  template <class Number>
  Number next() {
    Number value;
    std::memcpy(&value, record_.substr(at_, sizeof value).data(), sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string_view record_;
  std::size_t at_ = 0;
};

// The same for writing.
class Record {
 public:
  Record& u16(std::uint64_t value) { return put<std::uint16_t>(value); }
  Record& u32(std::uint64_t value) { return put<std::uint32_t>(value); }
  Record& u64(std::uint64_t value) { return put<std::uint64_t>(value); }
  Record& text(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  template <class Number>
  Record& put(std::uint64_t value) {
    const auto number = static_cast<Number>(value);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }
  std::string bytes_;
};

}  // namespace floe::zip
