#include "floe/launch/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "floe/core/error.h"

namespace floe::launch {
namespace {

constexpr std::size_t kLongestLine = 64 * 1024;

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const auto& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// What the new process does before it becomes the program: only calls that are safe after fork.
[[noreturn]] void become(char* const* arguments, char* const* environment, const sigset_t& signals,
                         pid_t parent, int out, int err, int failure) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the launcher died before the line above
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 &&
      dup2(err, STDERR_FILENO) >= 0) {
    if (nothing > STDERR_FILENO) close(nothing);
    std::signal(SIGPIPE, SIG_DFL);  // the launcher ignores it
    sigprocmask(SIG_SETMASK, &signals, nullptr);
    execvpe(arguments[0], arguments, environment);
  }
  const int reason = errno;
  [[maybe_unused]] const ssize_t told = write(failure, &reason, sizeof reason);
  _exit(127);
}

// The error number that kept the program from starting, or 0.
int start_failure(int fd) {
  int reason = 0;
  ssize_t count = 0;
  do count = read(fd, &reason, sizeof reason);
  while (count < 0 && errno == EINTR);
  return count == sizeof reason ? reason : 0;
}

}  // namespace

LineForwarder::LineForwarder(int to, std::string prefix, std::size_t num_kept)
    : to_(to), prefix_(std::move(prefix)), num_kept_(num_kept) {}

void LineForwarder::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    unfinished_.append(bytes.substr(0, end));
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (end != std::string_view::npos || unfinished_.size() >= kLongestLine)
      add_line(std::exchange(unfinished_, {}));
  }
  write_out();
}

void LineForwarder::finish() {
  if (!unfinished_.empty()) add_line(std::exchange(unfinished_, {}));
  write_out();
}

void LineForwarder::add_line(std::string_view line) {
  out_.append(prefix_).append(line).append("\n");
  if (num_kept_ == 0) return;
  if (kept_.size() == num_kept_) kept_.pop_front();
  kept_.emplace_back(line);
}

void LineForwarder::write_out() {
  std::string_view rest = out_;
  while (!rest.empty()) {
    const ssize_t written = write(to_, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd ready{to_, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      has_lost_ = has_lost_ || errno != EPIPE;  // EPIPE: nobody reads any more
      break;                                    // the ranks go on
    }
  }
  out_.clear();
}

Pipe make_pipe() {
  int ends[2];
  require(pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe: ", std::strerror(errno));
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

ChildProcess::ChildProcess(const std::vector<std::string>& command,
                           const std::vector<std::string>& environment, const sigset_t& signals) {
  Pipe out_pipe = make_pipe(), err_pipe = make_pipe(), failure = make_pipe();
  const auto arguments = pointers(command);
  const auto variables = pointers(environment);
  const pid_t parent = getpid();
  pid_ = fork();
  require(pid_ >= 0, "cannot start a process for '", command[0], "': ", std::strerror(errno));
  if (pid_ == 0)
    become(arguments.data(), variables.data(), signals, parent, out_pipe.write.get(),
           err_pipe.write.get(), failure.write.get());
  setpgid(pid_, pid_);  // here too, so that the group exists before anybody signals it
  failure.write.reset();
  if (const int reason = start_failure(failure.read.get())) {
    waitpid(pid_, nullptr, 0);
    throw ConfigError(str("cannot start '", command[0], "': ", std::strerror(reason),
                          "; give a program's path, or a name that is in PATH"));
  }
  out = std::move(out_pipe.read);
  err = std::move(err_pipe.read);
  fcntl(out.get(), F_SETFL, O_NONBLOCK);
  fcntl(err.get(), F_SETFL, O_NONBLOCK);
}

void ChildProcess::signal(int number) const {
  if (running_) kill(-pid_, number);
}

bool ChildProcess::poll_end() {
  if (!running_) return false;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid_)
    return false;
  // Until it is reaped, its number cannot belong to another process.
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  running_ = false;
  if (info.si_code == CLD_EXITED)
    end_.exit_code = info.si_status;
  else
    end_.signal = info.si_status;
  return true;
}

}  // namespace floe::launch
