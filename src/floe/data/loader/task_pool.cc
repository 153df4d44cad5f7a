#include "floe/data/loader/task_pool.h"

#include <utility>

namespace floe::data {

TaskPool::TaskPool(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

void TaskPool::submit(Task task, bool urgent) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    (urgent ? urgent_ : tasks_).push_back(std::move(task));
  }
  wake_.notify_one();
}

void TaskPool::stop() {
  std::deque<Task> forgotten, forgotten_urgent;  // destroyed without the lock
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    forgotten.swap(tasks_);
    forgotten_urgent.swap(urgent_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void TaskPool::work() {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopped_ || !urgent_.empty() || !tasks_.empty(); });
      if (stopped_) return;
      std::deque<Task>& queue = urgent_.empty() ? tasks_ : urgent_;
      task = std::move(queue.front());
      queue.pop_front();
    }
    task();
  }
}

}  // namespace floe::data
