// Threads that run small tasks. It does not bound its queue: whoever submits does, by what he has
// under way.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace floe::data {

class TaskPool {
 public:
  using Task = std::function<void()>;

  explicit TaskPool(int num_threads);
  ~TaskPool() { stop(); }

  // Runs soon; urgent tasks before the others. Tasks must not throw. Any thread, tasks included.
  void submit(Task task, bool urgent = false);
  // Waits for the tasks that are running and forgets the others; nothing runs afterwards.
  void stop();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> urgent_, tasks_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace floe::data
