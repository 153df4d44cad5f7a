// One thread that runs jobs in the order they were given: the CPU's communication stream.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace floe::comm {

class Worker {
 public:
  Worker();
  // Runs what is queued, then ends the thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The future carries what the job threw. When it is ready the job, and what it held, is gone.
  std::future<void> post(std::function<void()> job);

 private:
  struct Task {
    std::function<void()> job;
    std::promise<void> done;
  };
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace floe::comm
