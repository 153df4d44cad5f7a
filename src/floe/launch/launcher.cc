#include "floe/launch/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/launch/environment.h"

namespace floe::launch {
namespace {

constexpr std::size_t kKeptLines = 20;
constexpr int kMostSleep = 250;  // ms

void forward_lines(UniqueFd& from, LineForwarder& to) {
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

// What a job on several hosts says instead of what this one would.
Variables variables_of(const LaunchOptions::Place& place, int local_rank) {
  return {{"RANK", str(place.first_rank + local_rank)},
          {"WORLD_SIZE", str(place.world_size)},
          {"MASTER_ADDR", place.master_host},
          {"MASTER_PORT", str(place.master_port)},
          {"FLOE_JOB_ID", place.job},
          {kLaunchVariable, place.job.substr(0, place.job.rfind('.'))},  // without the round
          {kRestartsVariable, str(place.restarts)}};
}

}  // namespace

Launcher::Rank::Rank(ChildProcess started, const std::string& prefix)
    : process(std::move(started)),
      out(STDOUT_FILENO, prefix, 0),
      err(STDERR_FILENO, prefix, kKeptLines) {}

void Launcher::Rank::forward() {
  forward_lines(process.out, out);
  forward_lines(process.err, err);
}

Launcher::~Launcher() {
  signal_all(SIGKILL);
  while (any_running()) {
    wait_for_news(10);
    reap();
  }
}

LaunchResult Launcher::run() {
  start();
  while (any_running()) {
    wait_for_news(until_deadline());
    for (Rank& rank : ranks_) rank.forward();
    while (const int number = signals_.next()) handle(number);
    reap();
    if (companion_) {
      const std::string why = companion_->work();
      if (why_end_.empty()) why_end_ = why;
      // They normally end by themselves, because a collective lost its partner.
      if (!why_end_.empty() && !terminate_at_ && !kill_at_)
        terminate_at_ = Clock::now() + options_.grace;
    }
    meet_deadlines();
  }
  drain();
  return result();
}

void Launcher::start() {
  const bool given =
      std::any_of(options_.environment.begin(), options_.environment.end(),
                  [](const auto& variable) { return variable.first == "MASTER_PORT"; });
  const int port = given || options_.place ? 0 : free_port();  // what --env says wins below
  const std::string job = new_job_id();
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    Variables variables = rank_environment(rank, options_.num_ranks, port, options_.prefix, job);
    if (options_.place)
      for (auto& variable : variables_of(*options_.place, rank))
        variables.push_back(std::move(variable));
    variables.emplace_back(kGraceVariable, str(double(options_.grace.count()) / 1000));
    variables.insert(variables.end(), options_.environment.begin(), options_.environment.end());
    ranks_.emplace_back(
        ChildProcess(options_.command, merged_environment(variables), signals_.mask_before()),
        options_.prefix ? str("[", number_of(static_cast<std::size_t>(rank)), "] ") : "");
  }
}

bool Launcher::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.process.running(); });
}

void Launcher::signal_all(int number) {
  for (Rank& rank : ranks_) rank.process.signal(number);
}

std::string Launcher::running_ranks() const {
  std::vector<int> numbers;
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (ranks_[r].process.running()) numbers.push_back(number_of(r));
  return str(numbers.size() == 1 ? "rank " : "ranks ", join(numbers));
}

void Launcher::wait_for_news(int timeout_ms) {
  std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}};
  for (const Rank& rank : ranks_)
    for (const UniqueFd* fd : {&rank.process.out, &rank.process.err})
      if (*fd) polled.push_back({fd->get(), POLLIN, 0});
  if (companion_) companion_->add_polled(polled);
  poll(polled.data(), polled.size(), timeout_ms);
}

// Milliseconds, rounded up, but not longer than it may take to notice the end of a rank when
// another thread of this process was given the signal and dropped it.
int Launcher::until_deadline() const {
  const auto next = kill_at_ ? kill_at_ : terminate_at_;
  if (!next) return kMostSleep;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kMostSleep));
}

void Launcher::handle(int number) {
  if (number == SIGCHLD) return;
  if (number == SIGUSR1 || number == SIGUSR2) return signal_all(number);
  stop_signal_ = number;
  if (number == SIGINT) return interrupt();
  // Schedulers signal the launcher and the ranks, some of them twice: a repeat changes nothing.
  if (stops_++ == 0 && !kill_at_) terminate(options_.grace);
}

void Launcher::interrupt() {
  if (++interrupts_ == 1) return signal_all(SIGINT);
  log::warn("stopping ", running_ranks(), " after a second SIGINT");
  if (interrupts_ > 2) {
    kill_at_ = Clock::now();
    return;
  }
  signal_all(SIGINT);  // for whom the first one was a request, the second one ends it
  terminate(options_.kill_after);
}

void Launcher::terminate(std::chrono::milliseconds until_kill) {
  signal_all(SIGTERM);
  terminate_at_.reset();
  kill_at_ = Clock::now() + until_kill;
}

void Launcher::reap() {
  std::vector<int> failed;
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (ranks_[r].process.poll_end() && ranks_[r].process.end().failed())
      failed.push_back(static_cast<int>(r));
  failed_.insert(failed_.end(), failed.begin(), failed.end());
  if (failed.empty() || first_failure_) return;
  // Of those that ended in the same moment, one that was killed is the likelier cause.
  const auto killed = std::find_if(failed.begin(), failed.end(), [&](int r) {
    return ranks_[static_cast<std::size_t>(r)].process.end().signal != 0;
  });
  first_failure_ = killed != failed.end() ? *killed : failed.front();
  if (!kill_at_) terminate_at_ = Clock::now() + options_.grace;
}

// See Note [Ends of ranks].
void Launcher::meet_deadlines() {
  if (!any_running()) return;
  const auto now = Clock::now();
  if (kill_at_ && now >= *kill_at_) {
    log::warn(running_ranks(), " did not end; sending SIGKILL");
    signal_all(SIGKILL);
    kill_at_ = now + options_.kill_after;
  } else if (!kill_at_ && terminate_at_ && now >= *terminate_at_) {
    log::warn(running_ranks(), " still running ", double(options_.grace.count()) / 1000,
              " s after ",
              first_failure_
                  ? str("rank ", number_of(static_cast<std::size_t>(*first_failure_)), " failed")
                  : why_end_,
              "; sending SIGTERM");
    terminate(options_.kill_after);
  }
}

void Launcher::drain() {
  const auto end = Clock::now() + std::chrono::milliseconds(200);
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

std::optional<int> Launcher::cause() const {
  const auto is_echo = [this](int rank) {
    const auto& lines = ranks_[static_cast<std::size_t>(rank)].err.last_lines();
    return std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find(kBecauseOf) != std::string::npos;
    });
  };
  const auto found = std::find_if_not(failed_.begin(), failed_.end(), is_echo);
  return found == failed_.end() ? first_failure_ : *found;
}

LaunchResult Launcher::result() const {
  LaunchResult result;
  for (const Rank& rank : ranks_) result.ranks.push_back(rank.process.end());
  result.first_rank = first_rank();
  if (options_.place) result.world_size = options_.place->world_size;
  result.first_failure = cause();
  result.stop_signal = stop_signal_;
  result.has_lost_output = std::any_of(ranks_.begin(), ranks_.end(),
                                       [](const Rank& rank) { return rank.out.has_lost(); });
  if (result.first_failure) {
    const auto& lines = ranks_[static_cast<std::size_t>(*result.first_failure)].err.last_lines();
    result.last_stderr.assign(lines.begin(), lines.end());
  }
  return result;
}

}  // namespace floe::launch
