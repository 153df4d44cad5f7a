#include "floe/comm/worker.h"

#include <exception>
#include <utility>

namespace floe::comm {

Worker::Worker() : thread_([this] { loop(); }) {}

Worker::~Worker() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::future<void> Worker::post(std::function<void()> job) {
  Task task{std::move(job), {}};
  auto result = task.done.get_future();
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(task));
  }
  changed_.notify_one();
  return result;
}

void Worker::loop() {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      task = std::move(jobs_.front());
      jobs_.pop_front();
    }
    std::exception_ptr failure;
    try {
      task.job();
    } catch (...) {
      failure = std::current_exception();
    }
    task.job = nullptr;
    if (failure)
      task.done.set_exception(failure);
    else
      task.done.set_value();
  }
}

}  // namespace floe::comm
