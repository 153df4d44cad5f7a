
#include <filesystem>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/observe/sinks/sink.h"

namespace floe::observe {

// The sinks, in the order of their settings; each is in the file of its name.
SinkType tensorboard_sink();
SinkType jsonl_sink();
SinkType wandb_sink();
SinkType prometheus_sink();

namespace {

const std::vector<SinkType>& sink_types() {
  static const std::vector<SinkType> types{
      tensorboard_sink(),
      jsonl_sink(),
      wandb_sink(),
      prometheus_sink(),
  };
  return types;
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

// Hands everything to several sinks, and holds the caller to growing steps: each of them relies on
// it.
class AllSinks : public Sink {
 public:
  explicit AllSinks(std::int64_t first_step) : last_step_(first_step > 0 ? first_step : -1) {}

  void add(std::unique_ptr<Sink> sink) { sinks_.push_back(std::move(sink)); }

  void write(const Record& record) override {
    require(record.step > last_step_, "the metrics of step ", record.step,
            " came after those of step ", last_step_, "; steps must grow");
    for (auto& sink : sinks_) sink->write(record);
    last_step_ = record.step;
  }
  void add_files(const std::string& path, const std::string& name) override {
    for (auto& sink : sinks_)
      warn_of_errors(str("'", path, "' could not be attached to the logs"),
                     [&] { sink->add_files(path, name); });
  }
  void saved(double time_s) override {
    for (auto& sink : sinks_) sink->saved(time_s);
  }
  void finish(int exit_code) override {
    for (auto& sink : sinks_)
      warn_of_errors("a log could not be closed", [&] { sink->finish(exit_code); });
    sinks_.clear();  // says what is missing
  }

 private:
  std::int64_t last_step_;
  std::vector<std::unique_ptr<Sink>> sinks_;
};

}  // namespace

void describe(config::Schema<SinkConfigs>& s) {
  for (const SinkType& type : sink_types()) type.describe(s);
}

void check_sinks(const SinkConfigs& configs) {
  for (const SinkType& type : sink_types()) type.check(configs);
}

std::unique_ptr<Sink> open_sinks(const SinkConfigs& configs, const RunInfo& given) {
  RunInfo run = given;
  if (run.start_time_s == 0) run.start_time_s = unix_time_s();
  auto all = std::make_unique<AllSinks>(run.first_step);
  try {
    std::filesystem::create_directories(run.folder);
    for (const SinkType& type : sink_types())
      if (auto sink = type.open(configs, run)) all->add(std::move(sink));
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(str("cannot write the logs: ", error.what()));
  }
  return all;
}

}  // namespace floe::observe
