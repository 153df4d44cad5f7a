#include "floe/observe/report/logged_run.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <unordered_map>

#include "floe/config/yaml.h"
#include "floe/core/error.h"
#include "floe/observe/metrics/jsonl_reader.h"
#include "floe/schema/yaml_text.h"

namespace floe::report {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNotable = 50, kTail = 20;
constexpr std::size_t kMostLineBytes = 2000;
constexpr std::size_t kMostLogs = 1024;

// "rank_12.log" -> 12, anything else -> -1
std::int64_t rank_of(const std::string& name) {
  if (!name.starts_with("rank_") || !name.ends_with(".log")) return -1;
  std::int64_t rank = -1;
  const char* end = name.data() + name.size() - 4;
  const auto [stopped, error] = std::from_chars(name.data() + 5, end, rank);
  return error == std::errc() && stopped == end ? rank : -1;
}

RankLog read_log(const fs::path& path, std::int64_t rank) {
  RankLog log{.rank = rank};
  std::deque<std::string> tail;
  std::ifstream file(path, std::ios::binary);
  std::string line;
  const auto end_line = [&] {
    ++log.num_lines;
    const bool warning = line.find(" warning: ") != std::string::npos;
    const bool error = line.find(" error: ") != std::string::npos;
    log.num_warnings += warning;
    log.num_errors += error;
    if ((warning || error) && log.notable.size() < kMostNotable) log.notable.push_back(line);
    tail.push_back(line);
    if (tail.size() > kTail) tail.pop_front();
    line.clear();
  };
  auto* buffer = file.rdbuf();
  int last = '\n';
  for (int c = buffer->sbumpc(); c != EOF; c = buffer->sbumpc()) {
    if (c == '\n')
      end_line();
    else if (line.size() < kMostLineBytes)
      line.push_back(static_cast<char>(c));
    last = c;
  }
  if (last != '\n') end_line();
  log.tail.assign(tail.begin(), tail.end());
  return log;
}

constexpr std::size_t kMostSeries = 500;  // names are the trainer's own; more are damage
constexpr std::size_t kMostEvents = 200;
constexpr std::int64_t kMostNamedDamages = 10;  // of lines; the others are only counted

void add_settings(const std::string& name, const config::Value& value, LoggedRun& run) {
  const auto* map = value.as<config::Map>();
  if (map && !map->empty()) {
    for (const auto& [key, part] : *map)
      add_settings(name.empty() ? key : name + "." + key, part, run);
    return;
  }
  const bool plain = value.is_scalar() && !value.is_null();
  run.settings.emplace_back(name, plain ? value.scalar_text() : config::write_inline_yaml(value));
}

void read_settings(const fs::path& path, LoggedRun& run) {
  if (!fs::exists(path)) {
    run.problems.emplace_back("There is no config.yaml, so the settings of the run are unknown.");
    return;
  }
  try {
    add_settings("", config::read_yaml(path.string()), run);
  } catch (const Error& error) {
    run.problems.push_back(str("The settings cannot be read: ", error.what(), "."));
  }
}

// Puts the numbers of one line where they belong.
class RecordReader {
 public:
  explicit RecordReader(LoggedRun& run) : run_(run) {}

  void add(const observe::JsonLine& line) {
    if (run_.num_records++ == 0) run_.first_step = line.step;
    run_.last_step = line.step;
    for (const auto& [name, value] : line.values.items()) {
      if (name == "step" || name == "not_finite") continue;
      if (name == "time") {
        if (value.is_number()) add_time(value.get<double>());
      } else if (value.is_number() || value.is_null()) {
        if (Series* series = series_of(name))
          series->add(line.step, value.is_null() ? NAN : value.get<double>());
      } else if (value.is_string()) {
        add_text(line.step, name, value.get<std::string>());
      } else if (name == "phase_switch") {
        run_.phases.add_switch(line.step, value);
      }
    }
  }

 private:
  void add_time(double time_s) {
    if (run_.first_time_s == 0) run_.first_time_s = time_s;
    run_.last_time_s = time_s;
  }
  void add_text(std::int64_t step, const std::string& name, const std::string& text) {
    if (name == "phase") {
      run_.phases.add_step(step, text);
      return;
    }
    if (run_.events.size() == kMostEvents) return;
    const auto [known, is_new] = texts_.try_emplace(name, text);
    if (!is_new && known->second == text) return;
    known->second = text;
    run_.events.push_back({step, name, text});
  }
  Series* series_of(const std::string& name) {
    const auto [place, is_new] = places_.try_emplace(name, run_.series.size());
    if (is_new) {
      if (run_.series.size() == kMostSeries) {
        places_.erase(place);
        return nullptr;
      }
      run_.series.push_back({name, {}});
    }
    return &run_.series[place->second].series;
  }
  LoggedRun& run_;
  std::unordered_map<std::string, std::size_t> places_;
  std::unordered_map<std::string, std::string> texts_;  // the last of each name
};

void read_metrics(const fs::path& path, LoggedRun& run) {
  if (!fs::is_regular_file(path)) {
    run.problems.emplace_back("There is no metrics.jsonl, so there are no curves.");
    return;
  }
  RecordReader records(run);
  observe::JsonlReader reader(path.string());
  for (observe::JsonLine line; reader.next(line);) {
    if (line.problem.empty()) {
      records.add(line);
    } else if (++run.num_damaged_lines <= kMostNamedDamages) {
      run.problems.push_back(
          str("Line ", line.number, " of metrics.jsonl is left out: it is ", line.problem, "."));
    }
  }
  if (run.num_damaged_lines > kMostNamedDamages)
    run.problems.push_back(str(run.num_damaged_lines - kMostNamedDamages,
                               " more lines of metrics.jsonl are damaged and left out."));
  if (run.num_records == 0) run.problems.emplace_back("metrics.jsonl holds no step yet.");
}

void read_own_diagnostics(const fs::path& path, LoggedRun& run) {
  if (!fs::exists(path)) {
    run.problems.emplace_back(
        "There is no diagnostics.json, so units and memory by phase are unknown "
        "(log.diagnostics).");
    return;
  }
  try {
    run.diagnostics = read_diagnostics(path.string());
  } catch (const Error& error) {
    run.problems.push_back(str("The diagnostics cannot be read: ", error.what(), "."));
  }
}

void read_own_scores(const fs::path& path, LoggedRun& run) {
  if (!fs::exists(path)) return;
  try {
    run.scores = read_scores(path.string());
  } catch (const Error& error) {
    run.problems.push_back(str("The scores of tasks cannot be read: ", error.what(), "."));
  }
}

void read_own_status(const std::string& folder, LoggedRun& run) {
  try {
    run.status = observe::read_run_status(folder);
  } catch (const Error& error) {
    run.problems.emplace_back(error.what());
  }
}

}  // namespace

std::vector<RankLog> read_rank_logs(const std::string& folder) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (const std::int64_t rank = rank_of(entry.path().filename().string());
        rank >= 0 && entry.is_regular_file())
      found.emplace_back(rank, entry.path());
  std::sort(found.begin(), found.end());
  if (found.size() > kMostLogs) found.resize(kMostLogs);

  std::vector<RankLog> logs;
  for (const auto& [rank, path] : found) logs.push_back(read_log(path, rank));
  return logs;
}

const Series* LoggedRun::find(const std::string& series_name) const {
  for (const auto& [name, series] : series)
    if (name == series_name) return &series;
  return nullptr;
}

const std::string* LoggedRun::setting(const std::string& setting_name) const {
  for (const auto& [name, text] : settings)
    if (name == setting_name) return &text;
  return nullptr;
}

bool is_loss(const std::string& series_name) {
  return (series_name == "loss" || series_name.starts_with("loss_")) && series_name != "loss_scale";
}

LoggedRun read_logged_run(const std::string& folder) {
  require<ConfigError>(fs::is_directory(folder), "'", folder, "' is not the folder of a run");
  const fs::path top(folder);
  require<ConfigError>(fs::exists(top / "config.yaml") || fs::exists(top / "metrics.jsonl"), "'",
                       folder, "' holds no run: expected config.yaml or metrics.jsonl in it");
  LoggedRun run;
  run.folder = folder;
  read_settings(top / "config.yaml", run);
  read_metrics(top / "metrics.jsonl", run);
  read_own_diagnostics(top / "diagnostics.json", run);
  read_own_scores(top / kScoresFolder / kScoresFile, run);
  read_own_status(folder, run);
  run.logs = read_rank_logs((top / "logs").string());
  if (run.logs.empty())
    run.problems.emplace_back("There are no logs/rank_R.log, so warnings are unknown.");

  const std::string* name = run.setting("run.name");
  run.name = name ? *name : fs::absolute(top).lexically_normal().filename().string();
  return run;
}

}  // namespace floe::report
