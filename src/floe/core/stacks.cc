#include "floe/core/stacks.h"

#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>

#include "floe/core/str.h"

namespace floe {
namespace {

constexpr int kMostFrames = 64;

// Filled by the thread that was asked; a late one must not write into the answer of the next.
struct Answer {
  std::atomic<pid_t> asked{0};
  std::array<void*, kMostFrames> frames{};
  int count = 0;
  sem_t ready{};
};
Answer answer;

int asking_signal() { return SIGRTMIN + 7; }

void write_down_frames(int) {
  const int kept = errno;
  auto own = static_cast<pid_t>(::syscall(SYS_gettid));
  if (answer.asked.compare_exchange_strong(own, 0)) {
    answer.count = ::backtrace(answer.frames.data(), kMostFrames);
    ::sem_post(&answer.ready);
  }
  errno = kept;
}

std::string name_of(pid_t thread) {
  std::string name;
  std::getline(std::ifstream(str("/proc/self/task/", thread, "/comm")), name);
  return name;
}

void add_frames(std::vector<std::string>& lines) {
  constexpr int kOwn = 2;  // the handler, and the kernel's call of it
  const std::unique_ptr<char*, decltype(&std::free)> texts(
      ::backtrace_symbols(answer.frames.data(), answer.count), &std::free);
  for (int i = kOwn; texts && i < answer.count; ++i) lines.push_back(str("  ", texts.get()[i]));
}

// Whether it answered.
bool ask(pid_t thread) {
  answer.asked = thread;
  if (::syscall(SYS_tgkill, ::getpid(), thread, asking_signal()) != 0) return false;
  timespec end{};
  ::clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 1;
  while (::sem_timedwait(&answer.ready, &end) != 0)
    if (errno != EINTR) break;
  // Either nobody writes any more, or the frames are being written at this moment.
  pid_t asked = thread;
  if (answer.asked.compare_exchange_strong(asked, 0)) return false;
  return answer.count > 0;
}

}  // namespace

std::vector<std::string> stacks_of_all_threads() {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  ::sem_init(&answer.ready, 0, 0);
  std::array<void*, 1> warm;
  ::backtrace(warm.data(), 1);  // loads what it needs, which a handler must not
  struct sigaction action {};
  action.sa_handler = write_down_frames;
  action.sa_flags = SA_RESTART;
  ::sigaction(asking_signal(), &action, nullptr);
  std::vector<std::string> lines;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    const auto thread =
        static_cast<pid_t>(std::strtol(task.path().filename().c_str(), nullptr, 10));
    answer.count = 0;
    const bool answers = ask(thread);
    lines.push_back(
        str("thread ", thread, " (", name_of(thread), ")", answers ? ":" : " does not answer"));
    if (answers) add_frames(lines);
  }
  return lines;
}

}  // namespace floe
