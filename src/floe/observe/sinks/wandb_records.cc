#include "floe/observe/sinks/wandb_records.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "floe/observe/metrics/jsonl_reader.h"

namespace floe::metrics {

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

}  // namespace floe::metrics

namespace floe::metrics::wandb {

namespace {

using nlohmann::json;

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

std::string record(std::int64_t num, Kind kind, std::string_view message) {
  return Message().integer(1, num).bytes(static_cast<int>(kind), message).encoded();
}

Message header(const std::string& version) {
  return Message().message(1, Message().text(1, "floe " + version).text(2, "0.0.1"));
}

Message run(const RunInfo& info, const RunStart& start) {
  Message config;
  for (const auto& [key, value] : info.config.items())
    config.message(1, Message().text(1, key).text(
                          16, value.dump(-1, ' ', false, json::error_handler_t::replace)));
  Message message;
  message.text(1, start.id);
  if (!info.entity.empty()) message.text(2, info.entity);
  if (!info.project.empty()) message.text(3, info.project);
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

}  // namespace floe::metrics::wandb
