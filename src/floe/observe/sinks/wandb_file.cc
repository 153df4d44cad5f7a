#include "floe/observe/sinks/wandb_file.h"

#include <zlib.h>

#include <algorithm>

#include "floe/core/error.h"

namespace floe::metrics {
namespace {

constexpr std::int64_t kBlockBytes = 32768;
constexpr std::int64_t kHeadBytes = 7;
constexpr std::string_view kFileHeader("\x3a\x57\x26\x42\xe1\xbe\x00",
                                       7);  // ":W&B", magic, version
constexpr std::size_t kMostEntryBytes = 64
                                        << 20;  // far above any record; bounds what damage can ask

enum Chunk : unsigned char { kWhole = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

std::uint32_t checksum(unsigned char type, std::string_view data) {
  const uLong of_type = ::crc32(0, &type, 1);
  return static_cast<std::uint32_t>(
      ::crc32_z(of_type, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

std::uint32_t little_endian(std::string_view bytes) {
  std::uint32_t number = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

void put_chunk(std::string& out, unsigned char type, std::string_view data) {
  const std::uint32_t crc = checksum(type, data);
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(crc >> (8 * i)));
  for (int i = 0; i < 2; ++i) out.push_back(static_cast<char>(data.size() >> (8 * i)));
  out.push_back(static_cast<char>(type));
  out += data;
}

}  // namespace

std::string wandb_file_header() { return std::string(kFileHeader); }

std::string wandb_entry(std::string_view record, std::int64_t file_size) {
  std::string entry;
  bool first = true, last = false;
  while (!last) {
    std::int64_t left =
        kBlockBytes - (file_size + static_cast<std::int64_t>(entry.size())) % kBlockBytes;
    if (left < kHeadBytes) {
      entry.append(static_cast<std::size_t>(left), '\0');
      left = kBlockBytes;
    }
    const auto room = static_cast<std::size_t>(left - kHeadBytes);
    last = record.size() <= room;
    const std::string_view data = record.substr(0, room);
    put_chunk(entry, first ? (last ? kWhole : kFirst) : (last ? kLast : kMiddle), data);
    record.remove_prefix(data.size());
    first = false;
  }
  return entry;
}

WandbFileReader::WandbFileReader(const std::string& path) : file_(path, std::ios::binary) {
  require<DataError>(file_.is_open(), "cannot open '", path, "'");
  std::string header;
  require<DataError>(read(kFileHeader.size(), header) && header == kFileHeader, "'", path,
                     "' does not begin as a file of a W&B run does; delete it to begin a new one");
}

bool WandbFileReader::read(std::size_t num_bytes, std::string& out) {
  out.resize(num_bytes);
  file_.read(out.data(), static_cast<std::streamsize>(num_bytes));
  const auto got = static_cast<std::size_t>(file_.gcount());
  offset_ += static_cast<std::int64_t>(got);
  out.resize(got);
  return got == num_bytes;
}

bool WandbFileReader::fail(const std::string& damage) {
  damage_ = damage;
  return false;
}

bool WandbFileReader::next(std::string& record) {
  if (!damage_.empty()) return false;
  record.clear();
  bool begun = false;
  std::string head, data;
  while (true) {
    if (const std::int64_t left = kBlockBytes - offset_ % kBlockBytes; left < kHeadBytes)
      if (!read(static_cast<std::size_t>(left), data))
        return begun && fail("it ends inside an entry");
    if (!read(kHeadBytes, head)) {
      const bool clean = head.empty() && !begun;
      return !clean && fail("it ends inside an entry");
    }
    const std::uint32_t size = little_endian(std::string_view(head).substr(4, 2));
    const auto type = static_cast<unsigned char>(head[6]);
    if (!read(size, data)) return fail("it ends inside an entry");
    if (checksum(type, data) != little_endian(std::string_view(head).substr(0, 4)))
      return fail(str("a checksum does not match before byte ", offset_));
    const bool opens = type == kWhole || type == kFirst;
    if (opens == begun || type > kLast || type == 0)
      return fail(str("chunks are out of order before byte ", offset_));
    if (record.size() + data.size() > kMostEntryBytes)
      return fail(str("an entry is longer than ", kMostEntryBytes, " bytes"));
    record += data;
    begun = true;
    if (type == kWhole || type == kLast) return true;
  }
}

}  // namespace floe::metrics
