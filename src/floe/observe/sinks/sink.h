// Where the numbers of a run go. Rank 0 opens one Logger and writes one Record per optimizer step.
//
//   auto logger = open_logger(run, {.jsonl = true, .tensorboard = true, .wandb_mode = "offline"});
//   logger->write({.step = 1, .time_s = unix_time_s(), .values = {{"loss_laion", 2.5}, {"lr", 1e-4}}});
//   logger->finish(0);
//
// What every value means, and which file holds what, is in docs/metrics.md.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace floe::metrics {

// The numbers of one optimizer step, in the order in which they are written. What else happened at
// that step (validation, a phase switch) belongs to the same record: W&B and whoever counts the
// lines of metrics.jsonl rely on one record per step.
struct Record {
  std::int64_t step = 0;
  double time_s = 0;                                       // unix time
  std::vector<std::pair<std::string, double>> values;      // names are unique; any double, NaN too
  std::vector<std::pair<std::string, std::string>> texts;  // the phase, say
  // What is worth more than a number, under names of its own; only metrics.jsonl keeps it.
  nlohmann::ordered_json details = nlohmann::ordered_json::object();
};

struct RunInfo {
  std::string name;
  std::string folder;           // RUN; made if it is not there
  std::string project, entity;  // of W&B; entity may be empty
  nlohmann::json config;        // resolved: an object
  int world_size = 1;
  std::int64_t first_step = 0;  // steps up to it are logged already; 0 is a fresh run
  std::string version;          // of floe
  double start_time_s = 0;      // unix time; 0 means now
};

// Threads: one thread at a time. What cannot be opened is a floe::Error; what cannot be written later is a
// warning, see Note [A log is never worth a run] in append_file.h.
class Logger {
 public:
  virtual ~Logger() = default;
  // Steps must grow from record to record and begin above RunInfo::first_step (a fresh run may begin
  // with step 0). When it returns, the record is the file system's, where that takes it: killing the
  // process loses nothing.
  virtual void write(const Record& record) = 0;
  // Attaches a file, or every file in a folder, under this name; what has no notion of files (all but
  // W&B) does nothing. The bytes stay available when the caller deletes or replaces the original.
  virtual void add_files(const std::string& path, const std::string& name) {}
  // The end of the run; without it a reader sees a run that was killed. At most once, nothing after it.
  virtual void finish(int exit_code) {}
};

struct LoggerOptions {
  bool jsonl = true;
  bool tensorboard = true;
  std::string wandb_mode = "disabled";  // disabled | offline | online
  double upload_every_s = 60;           // online; see wandb_upload.h
};

// One Logger that writes to all that are chosen. On resume (first_step > 0) what a run that got
// further has logged beyond first_step is taken back first. Throws ConfigError for another W&B mode, and
// for online without a program that uploads.
std::unique_ptr<Logger> open_logger(const RunInfo& run, const LoggerOptions& options = {});

// The clock of Record::time_s.
double unix_time_s();

}  // namespace floe::metrics
