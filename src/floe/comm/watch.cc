#include "floe/comm/watch.h"

#include <utility>

namespace floe::comm {

Watch::Watch(std::chrono::milliseconds interval, std::function<bool()> look)
    : thread_([this, interval, look = std::move(look)] {
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, interval, [this] { return stop_; })) {
          lock.unlock();
          const bool seen = look();
          lock.lock();
          if (seen) return;
        }
      }) {}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace floe::comm
