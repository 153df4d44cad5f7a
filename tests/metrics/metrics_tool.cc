// Drives the sinks for the Python tests.
//
//   metrics_tool log RUN FIRST_STEP EXIT_CODE < RECORDS
//   metrics_tool kill RUN FIRST_STEP NUM_RECORDS < RECORDS     kills itself after so many records
//   metrics_tool progress FIRST_STEP TOTAL EVERY < RECORDS     a log line after every third step
//
// RECORDS: one JSON array per line, [step, time, {name: number or "NaN" ... or text}].
// RUN/info.json holds name, config, version, start_time, upload_every (seconds), log (settings of
// sinks, as in `log:`) and files ([[path, name], ...] attached at the end).
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/file/file.h"
#include "floe/observe/metrics/progress.h"
#include "floe/observe/sinks/sink.h"

namespace {

using namespace floe;
using nlohmann::ordered_json;

double number_of(const std::string& text) {
  if (text == "NaN") return NAN;
  return text == "-Infinity" ? -INFINITY : INFINITY;
}

bool is_not_finite(const ordered_json& value) {
  return value == "NaN" || value == "Infinity" || value == "-Infinity";
}

bool next_record(observe::Record& record) {
  std::string line;
  if (!std::getline(std::cin, line)) return false;
  const auto parsed = ordered_json::parse(line);
  record = {.step = parsed[0], .time_s = parsed[1]};
  for (const auto& [name, value] : parsed[2].items()) {
    if (value.is_number())
      record.values.emplace_back(name, value.get<double>());
    else if (is_not_finite(value))
      record.values.emplace_back(name, number_of(value));
    else
      record.texts.emplace_back(name, value.get<std::string>());
  }
  return true;
}

int log_records(const std::string& mode, const std::string& folder, std::int64_t first_step,
                std::int64_t last_word) {
  const auto info = nlohmann::json::parse(read_text(folder + "/info.json", 1 << 24));
  const observe::RunInfo run{.name = info.value("name", "run"),
                             .folder = folder,
                             .config = info.value("config", nlohmann::json::object()),
                             .first_step = first_step,
                             .version = info.value("version", "0"),
                             .start_time_s = info.value("start_time", 0.0),
                             .upload_every_s = info.value("upload_every", 60.0)};
  const auto settings = info.value("log", nlohmann::json::object());
  const auto configs =
      config::bind<observe::SinkConfigs>(config::parse_yaml(settings.dump(), "info.json"));
  observe::check_sinks(configs);
  const auto sinks = observe::open_sinks(configs, run);
  std::int64_t num_records = 0;
  for (observe::Record record; next_record(record);) {
    sinks->write(record);
    if (mode == "kill" && ++num_records == last_word) ::kill(::getpid(), SIGKILL);
  }
  for (const auto& file : info.value("files", nlohmann::json::array()))
    sinks->add_files(file[0], file[1]);
  sinks->finish(static_cast<int>(last_word));
  return 0;
}

int show_progress(std::int64_t first_step, std::int64_t total_steps, std::int64_t every_steps) {
  observe::ProgressLine line(first_step, total_steps, every_steps);
  for (observe::Record record; next_record(record);) {
    observe::Progress progress{.step = record.step};
    for (const auto& [name, value] : record.values) {
      if (name.starts_with("loss_")) progress.losses.emplace_back(name, value);
      if (name == "tokens_per_second") progress.tokens_per_second = value;
      if (name == "memory") progress.memory_bytes = static_cast<std::int64_t>(value);
    }
    line.update(progress);
    if (record.step % 3 == 0) log::info("a line about step ", record.step);
    ::usleep(120'000);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 4 && (words[0] == "log" || words[0] == "kill"))
      return log_records(words[0], words[1], std::stoll(words[2]), std::stoll(words[3]));
    if (words.size() == 4 && words[0] == "progress")
      return show_progress(std::stoll(words[1]), std::stoll(words[2]), std::stoll(words[3]));
    std::cerr << "usage: metrics_tool log|kill|progress ...\n";
    return 2;
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.exit());
  }
}
