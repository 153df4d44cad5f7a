#include "floe/observe/sinks/wandb_upload.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::observe {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr double kLongestPauseS = 1800;

std::chrono::steady_clock::time_point after(double seconds) {
  using Clock = std::chrono::steady_clock;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// The last line that says something.
std::string last_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<std::int64_t>(file.tellg());
  file.seekg(std::max<std::int64_t>(0, size - 4096));
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  return last;
}

// Between vfork and exec: plain system calls only, the memory is the parent's.
[[noreturn]] void become(const char* const* words, const char* home, int out, int nothing,
                         pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::chdir(home) != 0) ::_exit(127);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
#ifdef SYS_close_range
  const bool closed = ::syscall(SYS_close_range, 3U, ~0U, 0U) == 0;
#else
  const bool closed = false;
#endif
  if (!closed)
    for (int fd = 3; fd < 65536; ++fd) ::close(fd);
  ::execv(words[0], const_cast<char* const*>(words));
  ::_exit(127);
}

}  // namespace

std::string WandbUpload::program() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = str(folder.empty() ? "." : folder, "/wandb");
    std::error_code ignored;
    if (::access(file.c_str(), X_OK) == 0 && !fs::is_directory(file, ignored))
      return fs::absolute(file).string();
  }
  throw ConfigError(
      "log.wandb.mode is online, but the program 'wandb', which uploads the run, is not in PATH; "
      "install it (pip install wandb), or use mode: offline");
}

WandbUpload::WandbUpload(const fs::path& run_folder, std::string log, double every_s)
    : folder_(fs::absolute(run_folder)),
      log_(std::move(log)),
      program_(program()),
      every_s_(every_s),
      pause_s_(every_s) {}

WandbUpload::~WandbUpload() { terminate(); }

void WandbUpload::tick() {
  if (process_ > 0 && !ended()) return;
  if (Clock::now() >= next_) start();
}

void WandbUpload::settle(double most_s) {
  const auto end = after(most_s);
  while (process_ > 0 && !ended()) {
    if (Clock::now() >= end) return terminate();
    std::this_thread::sleep_for(20ms);
  }
}

void WandbUpload::finish(double most_s) {
  const auto end = after(most_s);
  settle(most_s);
  start();
  while (process_ > 0 && !ended()) {
    if (Clock::now() >= end) {
      terminate();
      warn(str("is not done after ", most_s, " s"));
      return;
    }
    std::this_thread::sleep_for(20ms);
  }
}

void WandbUpload::start() {
  const int out = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const std::string folder = folder_.string();
  const char* words[] = {program_.c_str(), "sync", "--include-synced", folder.c_str(), nullptr};
  // RUN: the program keeps logs of its own in ./wandb of where it runs.
  const std::string home = folder_.parent_path().parent_path().string();
  const pid_t parent = ::getpid();
  since_start_ = Stopwatch();
  next_ = after(pause_s_);
  // fork would copy the page tables of a process that may hold a model.
  process_ = ::vfork();  // NOLINT(bugprone-unsafe-functions)
  if (process_ == 0) become(words, home.c_str(), out >= 0 ? out : nothing, nothing, parent);
  const int reason = errno;
  if (process_ < 0) warn(str("cannot be started: ", std::strerror(reason)));
  if (out >= 0) ::close(out);
  if (nothing >= 0) ::close(nothing);
}

bool WandbUpload::ended() {
  int status = 0;
  const pid_t done = ::waitpid(process_, &status, WNOHANG);
  if (done == 0) return false;
  process_ = -1;
  const double took_s = since_start_.seconds();
  const bool failed = done < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  pause_s_ = failed ? std::min(kLongestPauseS, 2 * pause_s_) : std::max(every_s_, 10 * took_s);
  next_ = after(pause_s_);
  if (failed) {
    const std::string said = last_line(log_);
    warn(str(done > 0 && WIFSIGNALED(status) ? str("was ended by signal ", WTERMSIG(status))
                                             : str("failed (exit code ", WEXITSTATUS(status), ")"),
             said.empty() ? "" : str(", and said: ", said)));
  }
  return true;
}

void WandbUpload::terminate() {
  if (process_ <= 0) return;
  ::kill(-process_, SIGTERM);
  for (int i = 0; i < 100 && process_ > 0; ++i) {
    if (::waitpid(process_, nullptr, WNOHANG) != 0) process_ = -1;
    if (process_ > 0) std::this_thread::sleep_for(20ms);
  }
  if (process_ <= 0) return;
  ::kill(-process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  process_ = -1;
}

void WandbUpload::warn(const std::string& what) {
  if (std::exchange(warned_, true)) return;
  log::warn("the upload to W&B (", program_, " sync) ", what,
            "; the run goes on, and 'wandb sync --include-synced ", folder_.string(),
            "' uploads it at any time (what it says is in ", log_, ")");
}

}  // namespace floe::observe
