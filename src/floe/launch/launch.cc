#include "floe/launch/launch.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/launch/child.h"
#include "floe/launch/environment.h"

namespace floe::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kKeptLines = 20;
constexpr int kMostSleep = 250;  // ms

// Signals as something to read, for as long as it lives.
class SignalReader {
 public:
  SignalReader() {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
      struct sigaction now {};
      sigaction(number, nullptr, &now);
      if (now.sa_handler != SIG_IGN) sigaddset(&wanted, number);  // nohup and the like stay true
    }
    std::signal(SIGCHLD, SIG_DFL);
    std::signal(SIGPIPE, SIG_IGN);  // when nobody reads any more, the ranks go on
    pthread_sigmask(SIG_BLOCK, &wanted, &before_);
    fd_ = UniqueFd(signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
    require(static_cast<bool>(fd_), "cannot watch signals: ", std::strerror(errno));
  }
  ~SignalReader() {
    while (next()) continue;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  int fd() const { return fd_.get(); }
  const sigset_t& mask_before() const { return before_; }
  // The next signal that has arrived, or 0.
  int next() {
    signalfd_siginfo info;
    return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                              : 0;
  }

 private:
  sigset_t before_{};
  UniqueFd fd_;
};

// One rank: its process and where its output goes.
struct Rank {
  Rank(ChildProcess started, const std::string& prefix)
      : process(std::move(started)),
        out(STDOUT_FILENO, prefix, 0),
        err(STDERR_FILENO, prefix, kKeptLines) {}

  ChildProcess process;
  LineForwarder out, err;

  // Passes on what has arrived. Closes a stream at its end.
  void forward() {
    forward(process.out, out);
    forward(process.err, err);
  }

 private:
  static void forward(UniqueFd& from, LineForwarder& to) {
    char bytes[16 * 1024];
    while (from) {
      const ssize_t count = read(from.get(), bytes, sizeof bytes);
      if (count > 0) {
        to.feed({bytes, static_cast<std::size_t>(count)});
      } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        to.finish();
        from.reset();
      } else if (errno == EAGAIN) {
        return;
      }
    }
  }
};

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {}
  // Only after an exception are there still ranks.
  ~Launcher() {
    signal_all(SIGKILL);
    while (any_running()) {
      wait_for_news(10);
      reap();
    }
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  LaunchResult run() {
    start();
    while (any_running()) {
      wait_for_news(until_deadline());
      for (Rank& rank : ranks_) rank.forward();
      while (const int number = signals_.next()) handle(number);
      reap();
      meet_deadlines();
    }
    drain();
    return result();
  }

 private:
  void start() {
    const bool given =
        std::any_of(options_.environment.begin(), options_.environment.end(),
                    [](const auto& variable) { return variable.first == "MASTER_PORT"; });
    const int port = given ? 0 : free_port();  // what --env says wins below
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      Variables variables = rank_environment(rank, options_.num_ranks, port, options_.prefix);
      variables.emplace_back(kGraceVariable, str(double(options_.grace.count()) / 1000));
      variables.insert(variables.end(), options_.environment.begin(), options_.environment.end());
      ranks_.emplace_back(
          ChildProcess(options_.command, merged_environment(variables), signals_.mask_before()),
          options_.prefix ? str("[", rank, "] ") : "");
    }
  }

  bool any_running() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return rank.process.running(); });
  }

  void signal_all(int number) {
    for (Rank& rank : ranks_) rank.process.signal(number);
  }

  std::string running_ranks() const {
    std::vector<std::size_t> numbers;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r].process.running()) numbers.push_back(r);
    return str(numbers.size() == 1 ? "rank " : "ranks ", join(numbers));
  }

  // Sleeps until output, a signal or the timeout.
  void wait_for_news(int timeout_ms) {
    std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}};
    for (const Rank& rank : ranks_)
      for (const UniqueFd* fd : {&rank.process.out, &rank.process.err})
        if (*fd) polled.push_back({fd->get(), POLLIN, 0});
    poll(polled.data(), polled.size(), timeout_ms);
  }

  // Milliseconds, rounded up, but not longer than it may take to notice the end of a rank when
  // another thread of this process was given the signal and dropped it.
  int until_deadline() const {
    const auto next = kill_at_ ? kill_at_ : terminate_at_;
    if (!next) return kMostSleep;
    const auto left = std::chrono::ceil<milliseconds>(*next - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kMostSleep));
  }

  void handle(int number) {
    if (number == SIGCHLD) return;
    if (number == SIGUSR1 || number == SIGUSR2) return signal_all(number);
    stop_signal_ = number;
    if (number == SIGINT) return interrupt();
    // Schedulers signal the launcher and the ranks, some of them twice: a repeat changes nothing.
    if (stops_++ == 0 && !kill_at_) terminate(options_.grace);
  }

  // A person's Ctrl-C: the first one asks the ranks, the second one ends those that do not react.
  void interrupt() {
    if (++interrupts_ == 1) return signal_all(SIGINT);
    log::warn("stopping ", running_ranks(), " after a second SIGINT");
    if (interrupts_ > 2) {
      kill_at_ = Clock::now();
      return;
    }
    signal_all(SIGINT);  // for whom the first one was a request, the second one ends it
    terminate(options_.kill_after);
  }

  void terminate(milliseconds until_kill) {
    signal_all(SIGTERM);
    terminate_at_.reset();
    kill_at_ = Clock::now() + until_kill;
  }

  void reap() {
    std::vector<int> failed;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r].process.poll_end() && ranks_[r].process.end().failed())
        failed.push_back(static_cast<int>(r));
    if (failed.empty() || first_failure_) return;
    // Of those that ended in the same moment, one that was killed is the likelier cause.
    const auto killed = std::find_if(failed.begin(), failed.end(), [&](int r) {
      return ranks_[static_cast<std::size_t>(r)].process.end().signal != 0;
    });
    first_failure_ = killed != failed.end() ? *killed : failed.front();
    if (!kill_at_) terminate_at_ = Clock::now() + options_.grace;
  }

  // See Note [Ends of ranks].
  void meet_deadlines() {
    if (!any_running()) return;
    const auto now = Clock::now();
    if (kill_at_ && now >= *kill_at_) {
      log::warn(running_ranks(), " did not end; sending SIGKILL");
      signal_all(SIGKILL);
      kill_at_ = now + options_.kill_after;
    } else if (!kill_at_ && terminate_at_ && now >= *terminate_at_) {
      log::warn(running_ranks(), " still running ", double(options_.grace.count()) / 1000,
                " s after rank ", *first_failure_, " failed; sending SIGTERM");
      terminate(options_.kill_after);
    }
  }

  // The rest of the output. A process that left its group may hold a pipe open: that is not
  // waited for.
  void drain() {
    const auto end = Clock::now() + milliseconds(200);
    const auto open = [](const Rank& rank) { return rank.process.out || rank.process.err; };
    for (Rank& rank : ranks_) rank.forward();
    while (std::any_of(ranks_.begin(), ranks_.end(), open) && Clock::now() < end) {
      wait_for_news(20);
      for (Rank& rank : ranks_) rank.forward();
    }
    for (Rank& rank : ranks_) {
      rank.out.finish();
      rank.err.finish();
    }
  }

  LaunchResult result() const {
    LaunchResult result;
    for (const Rank& rank : ranks_) result.ranks.push_back(rank.process.end());
    result.first_failure = first_failure_;
    result.stop_signal = stop_signal_;
    if (first_failure_) {
      const auto& lines = ranks_[static_cast<std::size_t>(*first_failure_)].err.last_lines();
      result.last_stderr.assign(lines.begin(), lines.end());
    }
    return result;
  }

  const LaunchOptions& options_;
  SignalReader signals_;
  std::vector<Rank> ranks_;
  std::optional<int> first_failure_;
  std::optional<Clock::time_point> terminate_at_, kill_at_;
  std::optional<int> stop_signal_;
  int interrupts_ = 0, stops_ = 0;
};

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? str("SIG", name) : str("signal ", signal);
}

LaunchResult launch(const LaunchOptions& options) {
  require<ConfigError>(!options.command.empty(), "there is no program to launch");
  require<ConfigError>(options.num_ranks >= 1, "the number of ranks must be at least 1, got ",
                       options.num_ranks);
  return Launcher(options).run();
}

std::string describe_failure(const LaunchResult& result) {
  if (!result.first_failure) return "";
  const int rank = *result.first_failure;
  const RankEnd& end = result.ranks[static_cast<std::size_t>(rank)];
  return str(result.stop_signal ? str("stopped by ", signal_name(*result.stop_signal), "; ") : "",
             "rank ", rank, " of ", result.ranks.size(),
             result.stop_signal ? " ended first: " : " failed first: ",
             end.signal ? str("it was ended by ", signal_name(end.signal))
                        : str("it returned exit code ", end.exit_code));
}

}  // namespace floe::launch
