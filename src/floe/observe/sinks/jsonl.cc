#include "floe/observe/sinks/jsonl.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <span>

#include "floe/core/log.h"
#include "floe/io/file/file.h"
#include "floe/observe/metrics/jsonl_reader.h"

namespace floe::metrics {

namespace fs = std::filesystem;

namespace {

std::string lines(std::int64_t count) { return str(count, count == 1 ? " line" : " lines"); }

}  // namespace

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
    log::info("'", path, "': took back ", lines(num_later), ", since the steps run again");
  if (num_damaged > 0)
    log::warn("'", path, "': removed ", lines(num_damaged),
              " that were damaged, beginning with line ", damaged_line);
}

JsonlLogger::JsonlLogger(const RunInfo& run) {
  const std::string path = (fs::path(run.folder) / "metrics.jsonl").string();
  // A fresh run may log a step 0 of its own, so that nothing of an earlier run stays.
  if (fs::exists(path))
    trim_jsonl(path,
               run.first_step > 0 ? run.first_step : std::numeric_limits<std::int64_t>::min());
  file_ = std::make_unique<AppendFile>(path);
}

void JsonlLogger::write(const Record& record) { file_->append(json_line(record)); }

}  // namespace floe::metrics
