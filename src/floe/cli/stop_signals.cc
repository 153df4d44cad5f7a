#include "floe/cli/stop_signals.h"

#include <csignal>

namespace floe::cli {
namespace {

std::atomic<bool> stop_requested{false};

train::RunSignals of_a_run;
std::atomic<std::int64_t> interrupted_ns{0};  // by the first Ctrl-C; 0: not yet
constexpr std::int64_t kSamePress = 500'000'000;

void handle(int number) {
  if (number == SIGUSR1) {
    of_a_run.save = true;
    return;
  }
  of_a_run.ask_to_stop();
  if (number != SIGINT) return;
  const std::int64_t now = train::RunSignals::now_ns();
  if (interrupted_ns == 0) {
    interrupted_ns = now;
  } else if (now - interrupted_ns >= kSamePress) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
}

}  // namespace

const std::atomic<bool>& stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
  return stop_requested;
}

train::RunSignals& signals_of_a_run() {
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  return of_a_run;
}

}  // namespace floe::cli
