#include "floe/observe/sinks/wandb_file.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "floe/core/error.h"
#include "floe/core/host.h"
#include "floe/observe/metrics/jsonl_reader.h"

namespace floe::observe::wandb {
namespace {

using nlohmann::json;

constexpr std::int64_t kBlockBytes = 32768;
constexpr std::int64_t kHeadBytes = 7;
// ":W&B", magic, version
constexpr std::string_view kFileHeader("\x3a\x57\x26\x42\xe1\xbe\x00", 7);
// Far above any record; bounds what damage can ask for.
constexpr std::size_t kMostEntryBytes = 64 << 20;

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
  put_fixed(out, crc, 4);
  put_fixed(out, data.size(), 2);
  out.push_back(static_cast<char>(type));
  out += data;
}

constexpr double kMostTimeS = 253'402'300'799;  // the end of year 9999, and of a Timestamp

// google.protobuf.Timestamp
Message timestamp(double time_s) {
  const double seconds = std::floor(time_s);
  return Message()
      .integer(1, static_cast<std::int64_t>(seconds))
      .integer(2, static_cast<std::int64_t>((time_s - seconds) * 1e9));
}

// HistoryItem and SummaryItem are alike. A slash in a name is part of the name, no nesting.
Message item(const std::string& name, const std::string& value_json) {
  return Message().text(2, name).text(16, value_json);
}

// The items of a row: `_step` decides where sync puts it.
void add_items(Message& message, const Record& record, double runtime_s) {
  message.message(1, item("_step", std::to_string(record.step)));
  message.message(1, item("_timestamp", number_text(record.time_s)));
  message.message(1, item("_runtime", number_text(runtime_s)));
  for (const auto& [name, value] : record.values)
    message.message(1, item(name, number_text(value)));
  for (const auto& [name, text] : record.texts) message.message(1, item(name, quoted_text(text)));
}

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::string file_header() { return std::string(kFileHeader); }

std::string entry(std::string_view record, std::int64_t file_size) {
  std::string bytes;
  bool first = true, last = false;
  while (!last) {
    std::int64_t left =
        kBlockBytes - (file_size + static_cast<std::int64_t>(bytes.size())) % kBlockBytes;
    if (left < kHeadBytes) {
      bytes.append(static_cast<std::size_t>(left), '\0');
      left = kBlockBytes;
    }
    const auto room = static_cast<std::size_t>(left - kHeadBytes);
    last = record.size() <= room;
    const std::string_view data = record.substr(0, room);
    put_chunk(bytes, first ? (last ? kWhole : kFirst) : (last ? kLast : kMiddle), data);
    record.remove_prefix(data.size());
    first = false;
  }
  return bytes;
}

FileReader::FileReader(const std::string& path) : file_(path, std::ios::binary) {
  require<DataError>(file_.is_open(), "cannot open '", path, "'");
  std::string header;
  require<DataError>(read(kFileHeader.size(), header) && header == kFileHeader, "'", path,
                     "' does not begin as a file of a W&B run does; delete it to begin a new one");
}

bool FileReader::read(std::size_t num_bytes, std::string& out) {
  out.resize(num_bytes);
  file_.read(out.data(), static_cast<std::streamsize>(num_bytes));
  const auto got = static_cast<std::size_t>(file_.gcount());
  offset_ += static_cast<std::int64_t>(got);
  out.resize(got);
  return got == num_bytes;
}

bool FileReader::fail(const std::string& damage) {
  damage_ = damage;
  return false;
}

bool FileReader::next(std::string& record) {
  if (!damage_.empty()) return false;
  record.clear();
  bool begun = false;
  std::string head, data;
  while (true) {
    const std::int64_t left = kBlockBytes - offset_ % kBlockBytes;
    if (left < kHeadBytes && !read(static_cast<std::size_t>(left), data))
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

std::string record(std::int64_t num, Kind kind, std::string_view message) {
  return Message().integer(1, num).bytes(static_cast<int>(kind), message).encoded();
}

Message header(const std::string& version) {
  return Message().message(1, Message().text(1, "floe " + version).text(2, "0.0.1"));
}

Message run(const RunInfo& info, const RunStart& start, const std::string& project,
            const std::string& entity) {
  Message config;
  for (const auto& [key, value] : info.config.items())
    config.message(1, Message().text(1, key).text(
                          16, value.dump(-1, ' ', false, json::error_handler_t::replace)));
  Message message;
  message.text(1, start.id);
  if (!entity.empty()) message.text(2, entity);
  if (!project.empty()) message.text(3, project);
  message.message(4, config).text(8, info.name).text(13, host_name());
  message.message(17, timestamp(start.time_s));
  if (start.resume) message.integer(24, 1);
  return message;
}

Message environment(const RunInfo& info, const RunStart& start) {
  const auto num_cpus = static_cast<std::int64_t>(::sysconf(_SC_NPROCESSORS_ONLN));
  return Message()
      .text(1, "Linux")
      .message(3, timestamp(start.time_s))
      .text(6, "floe " + info.version)
      .text(12, host_name())
      .integer(17, num_cpus)
      .text(199, "floe");
}

Message history(const Record& record, double runtime_s) {
  Message message;
  add_items(message, record, runtime_s);
  return message.message(2, Message().integer(1, record.step));
}

Message summary(const Record& record, double runtime_s) {
  Message message;
  add_items(message, record, runtime_s);
  const auto whole_s = std::to_string(static_cast<std::int64_t>(runtime_s));
  return message.message(1, Message().text(2, "_wandb").text(2, "runtime").text(16, whole_s));
}

Message files(const std::vector<std::string>& paths) {
  constexpr int kAtEnd = 1;
  Message message;
  for (const std::string& path : paths)
    message.message(1, Message().text(1, path).integer(2, kAtEnd));
  return message;
}

Message exit(int exit_code, double runtime_s) {
  return Message().integer(1, exit_code).integer(2, static_cast<std::int64_t>(runtime_s));
}

std::optional<Parsed> parse_record(std::string_view bytes) {
  std::optional<Parsed> parsed;
  FieldReader fields(bytes);
  for (Field field; fields.next(field);) {
    if (!field.is_bytes) continue;
    switch (static_cast<Kind>(field.number)) {
      case Kind::history:
      case Kind::summary:
      case Kind::config:
      case Kind::files:
      case Kind::run:
      case Kind::exit:
      case Kind::header:
      case Kind::environment: parsed = {static_cast<Kind>(field.number), field.bytes};
    }
  }
  return fields.damaged() ? std::nullopt : parsed;
}

Row parse_row(const Parsed& parsed) {
  Row row;
  FieldReader items(parsed.message);
  for (Field field; items.next(field);) {
    if (field.number != 1 || !field.is_bytes) continue;
    std::string_view name, value;
    FieldReader parts(field.bytes);
    for (Field part; parts.next(part);) {
      if (part.number == 1 || part.number == 2) name = part.bytes;
      if (part.number == 16) value = part.bytes;
    }
    if (name == "_step") row.step = parse_number<std::int64_t>(value);
    if (name == "_runtime") {
      const double runtime_s = parse_number<double>(value).value_or(0);
      row.runtime_s = runtime_s >= 0 && runtime_s <= kMostTimeS ? runtime_s : 0;
    }
  }
  return row;
}

void parse_start(std::string_view run, RunStart& start) {
  FieldReader fields(run);
  for (Field field; fields.next(field);) {
    if (field.number == 24) start.resume = field.bits != 0;
    if (field.number != 17 || !field.is_bytes) continue;
    start.time_s = 0;
    FieldReader parts(field.bytes);
    for (Field part; parts.next(part);) {
      if (part.number == 1) start.time_s += static_cast<double>(part.bits);
      if (part.number == 2) start.time_s += static_cast<double>(part.bits) * 1e-9;
    }
  }
  start.time_s = std::min(start.time_s, kMostTimeS);
}

}  // namespace floe::observe::wandb
