#include "floe/observe/sinks/logger.h"

#include <chrono>
#include <filesystem>
#include <optional>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/observe/sinks/jsonl.h"
#include "floe/observe/sinks/tensorboard.h"
#include "floe/observe/sinks/wandb.h"

namespace floe::metrics {
namespace {

// What the file system refuses is reported like everything else.
template <class Work>
void as_own_errors(const Work& work) {
  try {
    work();
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(str("cannot write the logs: ", error.what()));
  }
}

// A log is never worth a run.
template <class Work>
void warn_of_errors(const std::string& what, const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    log::warn(what, ": ", error.what());
  }
}

// Hands everything to several loggers, and holds the caller to growing steps: each of them relies on it.
class AllLoggers : public Logger {
 public:
  explicit AllLoggers(std::int64_t first_step) : last_step_(first_step > 0 ? first_step : -1) {}

  void add(std::unique_ptr<Logger> logger) { loggers_.push_back(std::move(logger)); }

  void write(const Record& record) override {
    require(record.step > last_step_, "the metrics of step ", record.step,
            " came after those of step ", last_step_, "; steps must grow");
    for (auto& logger : loggers_) logger->write(record);
    last_step_ = record.step;
  }
  void add_files(const std::string& path, const std::string& name) override {
    for (auto& logger : loggers_)
      warn_of_errors(str("'", path, "' could not be attached to the logs"),
                     [&] { logger->add_files(path, name); });
  }
  void finish(int exit_code) override {
    for (auto& logger : loggers_)
      warn_of_errors("a log could not be closed", [&] { logger->finish(exit_code); });
    loggers_.clear();  // says what is missing
  }

 private:
  std::int64_t last_step_;
  std::vector<std::unique_ptr<Logger>> loggers_;
};

}  // namespace

double unix_time_s() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

std::unique_ptr<Logger> open_logger(const RunInfo& given, const LoggerOptions& options) {
  const std::string& mode = options.wandb_mode;
  const bool wandb = mode == "offline" || mode == "online";
  require<ConfigError>(wandb || mode == "disabled", "log.wandb.mode: '", mode,
                       "' is not one of disabled, offline, online");
  RunInfo run = given;
  if (run.start_time_s == 0) run.start_time_s = unix_time_s();
  auto all = std::make_unique<AllLoggers>(run.first_step);
  as_own_errors([&] {
    std::filesystem::create_directories(run.folder);
    if (options.jsonl) all->add(std::make_unique<JsonlLogger>(run));
    if (options.tensorboard) all->add(std::make_unique<TensorboardLogger>(run));
    if (wandb)
      all->add(std::make_unique<WandbLogger>(
          run, mode == "online" ? std::optional(options.upload_every_s) : std::nullopt));
  });
  return all;
}

}  // namespace floe::metrics
