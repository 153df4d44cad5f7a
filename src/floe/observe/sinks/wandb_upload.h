// Uploads a W&B run while it goes on: the folder is handed to the user's own `wandb sync`, as a
// process of its own, at the first record, every minute or so, and at the end. Nothing of it can
// hold or end the run: what fails is a warning, once, and is tried again.
//
// One thread. The process is in a group of its own, inherits no file of the run (a socket that it
// held open would hide from other ranks that this one is gone), and ends with the run, also with
// one that is killed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "floe/core/stopwatch.h"

namespace floe::observe {

class WandbUpload {
 public:
  static constexpr double kEveryS = 60;

  // The program in PATH. Throws ConfigError when there is none.
  static std::string program();

  // What the program says is appended to `log`.
  WandbUpload(const std::filesystem::path& run_folder, std::string log, double every_s = kEveryS);
  // Ends the upload under way.
  ~WandbUpload();
  WandbUpload(const WandbUpload&) = delete;
  WandbUpload& operator=(const WandbUpload&) = delete;

  // After a record; never waits. An upload sends the whole run, so that the pause before the next
  // one is at least ten times as long as the last one took.
  void tick();
  // Waits until no upload is under way, at most so long; then it is ended.
  void settle(double most_s);
  // The last one, when everything is in the folder. Waits for it, at most so long.
  void finish(double most_s);

 private:
  using Clock = std::chrono::steady_clock;

  void start();
  // Takes note of an end; false while it is under way.
  bool ended();
  void terminate();
  void warn(const std::string& what);

  const std::filesystem::path folder_;
  const std::string log_, program_;
  const double every_s_;
  pid_t process_ = -1;     // none
  Stopwatch since_start_;  // of the upload under way
  Clock::time_point next_ = Clock::now();
  double pause_s_;
  bool warned_ = false;
};

}  // namespace floe::observe
