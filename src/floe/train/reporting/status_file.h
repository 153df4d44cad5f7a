// Keeps RUN/status.json, which `floe status` reads (see observe::RunStatus).
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "floe/comm/watch.h"
#include "floe/comm/world.h"
#include "floe/observe/metrics/run_status.h"
#include "floe/train/reporting/step_record.h"

namespace floe::train {

// Of rank 0. What it is told is in the file some seconds later at the most, and the file is renewed
// while nothing happens: one that is old means that nobody writes it any more. A disk that does not
// take it is a warning.
class StatusFile {
 public:
  StatusFile(std::string folder, comm::World& world);
  ~StatusFile();
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;

  void begin(std::int64_t first_step, std::int64_t total_steps);
  void set_total_steps(std::int64_t total_steps);
  void step(const StepRecord& record);
  void saved(const std::string& checkpoint, double time_s);

 private:
  // `ask`: what the ranks are doing, if there has been no step for some time.
  void write(bool ask);

  const std::string folder_;
  comm::World& world_;
  std::mutex mutex_;  // of what follows
  observe::RunStatus status_;
  bool warned_ = false;
  std::unique_ptr<comm::Watch> watch_;  // last: ends before what it looks at
};

// The last word, after the run: how it ended and why. Where this process has not begun a run in
// that folder, nothing is written.
void end_status(const std::string& folder, int exit_code, bool stopped, const std::string& reason);

}  // namespace floe::train
