// A thread that looks at regular intervals until it has seen what it looks for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace floe::comm {

class Watch {
 public:
  // `look` returns true when it has seen it; it may not throw.
  Watch(std::chrono::milliseconds interval, std::function<bool()> look);
  // Lets a look that is under way end.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace floe::comm
