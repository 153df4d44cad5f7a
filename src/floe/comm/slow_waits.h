// What is said about a wait that takes long, in the log and to ranks that ask, before it fails.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "floe/control/control_plane.h"

namespace floe::comm {

class SlowWaits {
 public:
  // The first ranks explain a wait; more than one, since one may be the rank that is waited for.
  static constexpr int kRanksThatTell = 2;

  // The control plane must outlive it. A wait is slow after a minute, or a third of the timeout.
  SlowWaits(control::ControlPlane& control, int rank, std::chrono::milliseconds timeout);

  // Tells ranks that ask, from now on, what this one is doing (see Activity).
  void answer();
  // Called every now and then, by one thread: writes what there is to say into the log. Never
  // throws.
  void look();
  // Writes the last line of this rank: look() writes none after it.
  void end_with(const std::string& line);

  // What every rank is doing, by rank; a rank that does not answer has no text.
  std::vector<std::string> states();
  // The same as a sentence.
  std::string sentence();

 private:
  void tell_of_own_wait();
  void tell_where_it_is();

  control::ControlPlane& control_;
  int rank_;
  std::chrono::milliseconds slow_;
  std::int64_t told_wait_ = 0;  // the wait under way, when it was looked at last
  std::chrono::milliseconds tell_after_{0};
  // By another rank, what this one is doing; the control plane's thread says so.
  std::shared_ptr<std::atomic<bool>> asked_ = std::make_shared<std::atomic<bool>>(false);
  std::int64_t told_part_ = -1;  // where the threads were in it is in the log
  std::mutex telling_;           // held while that is being written
  bool ended_ = false;           // by telling_
};

}  // namespace floe::comm
