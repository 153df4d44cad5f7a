#include "floe/observe/sinks/jsonl.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>

#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/io/file/file.h"
#include "floe/observe/metrics/jsonl_reader.h"
#include "floe/observe/sinks/append_file.h"
#include "floe/observe/sinks/sink.h"

namespace floe::observe {
namespace {

namespace fs = std::filesystem;

struct JsonlConfig {
  bool jsonl = true;
};
void describe(config::Schema<JsonlConfig>& s) {
  s.field("jsonl", &JsonlConfig::jsonl, "Write every step to metrics.jsonl");
}

class JsonlSink : public Sink {
 public:
  explicit JsonlSink(const RunInfo& run) {
    const std::string path = (fs::path(run.folder) / "metrics.jsonl").string();
    // A fresh run may log a step 0 of its own, so that nothing of an earlier run stays.
    if (fs::exists(path))
      trim_jsonl(path,
                 run.first_step > 0 ? run.first_step : std::numeric_limits<std::int64_t>::min());
    file_ = std::make_unique<AppendFile>(path);
  }
  void write(const Record& record) override { file_->append(json_line(record)); }

 private:
  std::unique_ptr<AppendFile> file_;
};

std::unique_ptr<Sink> open_jsonl(const JsonlConfig& config, const RunInfo& run) {
  return config.jsonl ? std::make_unique<JsonlSink>(run) : nullptr;
}

}  // namespace

SinkType jsonl_sink() { return sink_type(open_jsonl); }

std::string json_line(const Record& record) {
  std::string line = str("{\"step\":", record.step, ",\"time\":", number_text(record.time_s));
  std::string not_finite;
  for (const auto& [name, value] : record.values) {
    const bool finite = std::isfinite(value);
    line += "," + quoted_text(name) + ":" + (finite ? number_text(value) : "null");
    if (!finite)
      not_finite +=
          (not_finite.empty() ? "" : ",") + quoted_text(name) + ":\"" + number_text(value) + "\"";
  }
  for (const auto& [name, text] : record.texts)
    line += "," + quoted_text(name) + ":" + quoted_text(text);
  for (const auto& [name, value] : record.details.items())
    line += "," + quoted_text(name) + ":" +
            value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (!not_finite.empty()) line += ",\"not_finite\":{" + not_finite + "}";
  return line + "}\n";
}

void trim_jsonl(const std::string& path, std::int64_t last_step) {
  // First look, then write: a file that is as it should be stays untouched.
  std::int64_t num_later = 0, num_damaged = 0, damaged_line = 0;
  const auto kept_lines = [&](auto&& keep) {
    num_later = num_damaged = 0;
    std::int64_t previous = std::numeric_limits<std::int64_t>::min();
    JsonlReader reader(path);
    for (JsonLine line; reader.next(line);) {
      if (!line.problem.empty()) {
        if (num_damaged++ == 0) damaged_line = line.number;
      } else if (line.step > last_step || line.step <= previous) {
        ++num_later;
      } else {
        previous = line.step;
        keep(line.text);
      }
    }
  };
  kept_lines([](const std::string&) {});
  if (num_later + num_damaged == 0) return;

  AtomicFile file(path);
  std::int64_t size = 0;
  kept_lines([&](std::string text) {
    text += '\n';
    file.write_at(size, std::as_bytes(std::span(text)));
    size += static_cast<std::int64_t>(text.size());
  });
  file.commit();
  if (num_later > 0)
    log::info("'", path, "': took back ", counted(num_later, "line"),
              ", since the steps run again");
  if (num_damaged > 0)
    log::warn("'", path, "': removed ", counted(num_damaged, "line"),
              " that were damaged, beginning with line ", damaged_line);
}

}  // namespace floe::observe
