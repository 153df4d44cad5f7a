// RUN/tensorboard/events.out.tfevents...: what `tensorboard --logdir RUN/tensorboard` shows. Every
// value is a scalar under its own name, the settings are in the HPARAMS tab, and the resolved
// configuration is the text "config".
#include "floe/observe/sinks/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>

#include "floe/core/host.h"
#include "floe/core/str.h"
#include "floe/core/utf8.h"
#include "floe/observe/sinks/append_file.h"
#include "floe/observe/sinks/protobuf.h"
#include "floe/observe/sinks/sink.h"

namespace floe::observe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kReflectedPolynomial = 0x82f63b78U;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? kReflectedPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}

constexpr auto kCrcTable = make_crc_table();

using Settings = std::vector<std::pair<std::string, json>>;

void flatten(const std::string& name, const json& value, Settings& settings) {
  if (!value.is_object() || value.empty()) {
    settings.emplace_back(name, value);
    return;
  }
  for (const auto& [key, part] : value.items())
    flatten(name.empty() ? key : name + "." + key, part, settings);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t rest = ~0U;
  for (const char c : bytes)
    rest = rest >> 8 ^ kCrcTable[(rest ^ static_cast<unsigned char>(c)) & 0xff];
  return ~rest;
}

std::string tf_record(std::string_view bytes) {
  std::string record;
  put_fixed(record, bytes.size(), 8);
  put_fixed(record, masked_crc(crc32c(record)), 4);
  record += bytes;
  put_fixed(record, masked_crc(crc32c(bytes)), 4);
  return record;
}

Settings flat_config(const json& config) {
  Settings settings;
  if (config.is_object() && !config.empty()) flatten("", config, settings);
  return settings;
}

namespace {

// Field numbers of tensorflow.Event and tensorflow.Summary, and of what is in them.
namespace event {
enum { wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7 };
}
namespace summary {
enum { value = 1 };
}
namespace value {
enum { tag = 1, simple_value = 2, tensor = 8, metadata = 9 };
}

constexpr std::string_view kFilePrefix = "events.out.tfevents.";

// SummaryMetadata{plugin_data{plugin_name, content}}
Message plugin(const std::string& name, const Message& content) {
  return Message().message(1, Message().text(1, name).message(2, content));
}

// TensorProto: one string
Message text_tensor(const std::string& text) {
  constexpr int kString = 7;
  return Message().integer(1, kString).message(2, Message()).bytes(8, replace_invalid_utf8(text));
}

Message text_value(const std::string& tag, const std::string& text) {
  return Message()
      .text(value::tag, tag)
      .message(value::tensor, text_tensor(text))
      .message(value::metadata, plugin("text", Message()));
}

// The HPARAMS tab reads its data from the metadata; the tensor is a required filler of no elements.
Message hparams_value(const std::string& tag, int field, const Message& content) {
  constexpr int kFloat = 1;
  const Message no_elements = Message().message(2, Message());
  return Message()
      .text(value::tag, "_hparams_/" + tag)
      .message(value::tensor, Message().integer(1, kFloat).message(2, no_elements))
      .message(value::metadata, plugin("hparams", Message().message(field, content)));
}

// google.protobuf.Value
Message hparam(const json& setting) {
  if (setting.is_number()) return Message().number(2, setting.get<double>());
  if (setting.is_boolean()) return Message().integer(4, setting.get<bool>());
  if (setting.is_string()) return Message().text(3, setting.get<std::string>());
  return Message().text(3, setting.dump(-1, ' ', false, json::error_handler_t::replace));
}

Message session_start(const RunInfo& run, double time_s) {
  Message start;
  for (const auto& [name, setting] : flat_config(run.config))
    start.message(1, Message().text(1, name).message(2, hparam(setting)));
  return start.text(4, run.name).number(5, time_s);
}

// As Markdown, which TensorBoard renders: an indented block is shown as it is.
std::string config_text(const RunInfo& run) {
  std::string text = str("    ", run.config.dump(2, ' ', false, json::error_handler_t::replace));
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 5)
    text.insert(at + 1, "    ");
  return text;
}

// TensorBoard reads the files of a folder in the order of their names, so that a new one must sort
// behind all others even when the clock went back.
std::string new_file_name(const fs::path& folder, double time_s, bool& first) {
  auto seconds = static_cast<std::int64_t>(time_s);
  first = true;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFilePrefix)) continue;
    first = false;
    std::int64_t theirs = 0;
    std::from_chars(name.data() + kFilePrefix.size(), name.data() + name.size(), theirs);
    if (theirs < 9'000'000'000) seconds = std::max(seconds, theirs + 1);
  }
  return str(kFilePrefix, seconds, ".", host_name(), ".", ::getpid(), ".0");
}

struct TensorboardConfig {
  bool tensorboard = true;
};
void describe(config::Schema<TensorboardConfig>& s) {
  s.field("tensorboard", &TensorboardConfig::tensorboard, "Write TensorBoard event files");
}

class TensorboardSink : public Sink {
 public:
  // Every opening begins a new file. On resume its first event makes TensorBoard drop what older
  // files hold beyond first_step.
  explicit TensorboardSink(const RunInfo& run);
  void write(const Record& record) override;
  // Marks a run that succeeded as done in the HPARAMS tab.
  void finish(int exit_code) override;

 private:
  void add_event(double time_s, std::int64_t step, int field, std::string_view content);
  std::unique_ptr<AppendFile> file_;
  std::map<std::string, std::string> texts_;  // the last ones: a text is written where it changes
};

TensorboardSink::TensorboardSink(const RunInfo& run) {
  const fs::path folder = fs::path(run.folder) / "tensorboard";
  fs::create_directories(folder);
  const double time_s = run.start_time_s;
  bool first = true;
  const std::string name = new_file_name(folder, time_s, first);
  file_ = std::make_unique<AppendFile>((folder / name).string());

  add_event(time_s, 0, event::file_version, "brain.Event:2");
  if (!first) {
    constexpr int kStart = 1;
    add_event(time_s, run.first_step + 1, event::session_log,
              Message().integer(1, kStart).encoded());
  }
  add_event(time_s, run.first_step, event::summary,
            Message()
                .message(summary::value,
                         hparams_value("session_start_info", 3, session_start(run, time_s)))
                .message(summary::value, text_value("config", config_text(run)))
                .encoded());
}

void TensorboardSink::add_event(double time_s, std::int64_t step, int field,
                                std::string_view content) {
  Message entry;
  entry.number(event::wall_time, time_s).integer(event::step, step).bytes(field, content);
  file_->append(tf_record(entry.encoded()));
}

void TensorboardSink::write(const Record& record) {
  Message values;
  for (const auto& [name, number] : record.values)
    values.message(
        summary::value,
        Message().text(value::tag, name).number32(value::simple_value, static_cast<float>(number)));
  for (const auto& [name, text] : record.texts) {
    const auto [known, is_new] = texts_.try_emplace(name, text);
    if (!is_new && known->second == text) continue;
    known->second = text;
    values.message(summary::value, text_value(name, text));
  }
  add_event(record.time_s, record.step, event::summary, values.encoded());
}

void TensorboardSink::finish(int exit_code) {
  // TensorBoard keeps the first end that it reads: a failure that is resumed later would stay one.
  if (exit_code != 0) return;
  constexpr int kSuccess = 1;
  const double time_s = unix_time_s();
  const Message end = Message().integer(1, kSuccess).number(2, time_s);
  add_event(time_s, 0, event::summary,
            Message().message(summary::value, hparams_value("session_end_info", 4, end)).encoded());
}

std::unique_ptr<Sink> open_tensorboard(const TensorboardConfig& config, const RunInfo& run) {
  return config.tensorboard ? std::make_unique<TensorboardSink>(run) : nullptr;
}

}  // namespace

SinkType tensorboard_sink() { return sink_type(open_tensorboard); }

}  // namespace floe::observe
