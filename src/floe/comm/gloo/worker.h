#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

namespace floe::comm {

// One thread that runs jobs in the order they were given: the CPU's communication stream.
class Worker {
 public:
  Worker() : thread_([this] { loop(); }) {}
  // Runs what is queued, then ends the thread.
  ~Worker() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The future carries what the job threw. When it is ready the job, and what it held, is gone.
  std::future<void> post(std::function<void()> job) {
    Task task{std::move(job), {}};
    auto result = task.done.get_future();
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(task));
    }
    changed_.notify_one();
    return result;
  }

 private:
  struct Task {
    std::function<void()> job;
    std::promise<void> done;
  };

  void loop() {
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

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace floe::comm
