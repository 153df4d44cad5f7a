// Where the numbers of a run go. Rank 0 opens all sinks that the configuration switches on, as one,
// and writes one Record per optimizer step.
//
//   const auto sinks = open_sinks(config.log.sinks, run);
//   sinks->write({.step = 1, .time_s = unix_time_s(), .values = {{"loss_laion", 2.5}}});
//   sinks->finish(0);
//
// A sink is one file of this folder and its line in sinks.cc; docs/adding-a-sink.md shows it. What
// every value means, and which file holds what, is in docs/metrics.md.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <typeindex>

#include "floe/observe/metrics/record.h"
#include "floe/schema/schema.h"

namespace floe::observe {

struct RunInfo {
  std::string name;
  std::string folder;     // RUN; made if it is not there
  nlohmann::json config;  // resolved: an object
  int world_size = 1;
  std::int64_t first_step = 0;  // steps up to it are logged already; 0 is a fresh run
  std::string version;          // of floe
  double start_time_s = 0;      // unix time; 0 means now
  std::int64_t restarts = 0;    // starts before this one
  double upload_every_s = 60;   // for sinks that upload while the run goes on
};

// Threads: one thread at a time. A sink that cannot be opened is a floe::Error; what cannot be
// written later is a warning, see Note [A log is never worth a run] in append_file.h.
class Sink {
 public:
  virtual ~Sink() = default;
  // Steps grow from record to record and begin above RunInfo::first_step (a fresh run may begin
  // with step 0). When it returns, the record is the file system's, where that takes it: killing
  // the process loses nothing.
  virtual void write(const Record& record) = 0;
  // A checkpoint: attaches a file, or every file in a folder, under this name; sinks without a
  // notion of files do nothing. The bytes stay available when the caller deletes or replaces the
  // original.
  virtual void add_files(const std::string& /*path*/, const std::string& /*name*/) {}
  // A checkpoint was whole at this unix time.
  virtual void saved(double /*time_s*/) {}
  // The end of the run; without it a reader sees a run that was killed. At most once, nothing after
  // it. `exit_code`: 0 when the run is done, 1 when it failed or was stopped.
  virtual void finish(int /*exit_code*/) {}
};

// The settings of all sinks, each of the type that its sink declares: the keys stand side by side
// in the block `log:`.
class SinkConfigs {
 public:
  // As a default-constructed Config until it is set.
  template <class Config>
  Config& of() {
    std::any& config = configs_[typeid(Config)];
    if (!config.has_value()) config.emplace<Config>();
    return *std::any_cast<Config>(&config);
  }
  template <class Config>
  const Config& of() const {
    static const Config defaults{};
    const auto found = configs_.find(typeid(Config));
    return found == configs_.end() ? defaults : *std::any_cast<Config>(&found->second);
  }

 private:
  std::map<std::type_index, std::any> configs_;
};
void describe(config::Schema<SinkConfigs>& s);

// Before anything of a run is made: throws ConfigError when a sink cannot do what its settings ask.
void check_sinks(const SinkConfigs& configs);

// One Sink that hands everything to all that are switched on. On resume (first_step > 0) what a run
// that got further has logged beyond first_step is taken back first.
std::unique_ptr<Sink> open_sinks(const SinkConfigs& configs, const RunInfo& run);

// A sink as sinks.cc knows it.
struct SinkType {
  std::function<void(config::Schema<SinkConfigs>&)> describe;
  std::function<void(const SinkConfigs&)> check;
  std::function<std::unique_ptr<Sink>(const SinkConfigs&, const RunInfo&)> open;
};

// From a struct with a schema, whose fields become keys of `log:`, and what opens the sink: null
// where the settings switch it off. `check` may be null.
template <config::Described Config>
SinkType sink_type(std::unique_ptr<Sink> (*open)(const Config&, const RunInfo&),
                   void (*check)(const Config&) = nullptr) {
  return {
      .describe =
          [](config::Schema<SinkConfigs>& s) {
            s.embed<Config>([](auto& configs) -> auto& { return configs.template of<Config>(); });
          },
      .check =
          [check](const SinkConfigs& configs) {
            if (check) check(configs.of<Config>());
          },
      .open = [open](const SinkConfigs& configs,
                     const RunInfo& run) { return open(configs.of<Config>(), run); },
  };
}

}  // namespace floe::observe
