#include "floe/cli/stop_signals.h"

#include <csignal>

namespace floe::cli {
namespace {

std::atomic<bool> stop_requested{false};

}  // namespace

const std::atomic<bool>& stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
  return stop_requested;
}

}  // namespace floe::cli
