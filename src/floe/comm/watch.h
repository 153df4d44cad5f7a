#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace floe::comm {

// A thread that looks at regular intervals until it has seen what it looks for.
class Watch {
 public:
  // `look` returns true when it has seen it; it may not throw.
  Watch(std::chrono::milliseconds interval, std::function<bool()> look)
      : thread_([this, interval, look = std::move(look)] {
          std::unique_lock lock(mutex_);
          while (!changed_.wait_for(lock, interval, [this] { return stop_; })) {
            lock.unlock();
            const bool seen = look();
            lock.lock();
            if (seen) return;
          }
        }) {}
  // Lets a look that is under way end.
  ~Watch() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace floe::comm
