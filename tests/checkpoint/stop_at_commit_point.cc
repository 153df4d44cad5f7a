// Linked into a program, kills it (SIGKILL) at the commit point that the environment names:
// FLOE_TEST_STOP_AT=NAME, or NAME@RANK for one rank; with FLOE_TEST_STOP_AFTER=N at the N-th time
// (from 1).
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "floe/checkpoint/save/commit_point.h"

namespace {

// What the environment asks for, read once.
struct Wanted {
  std::string name;
  long times = 1;
};

Wanted read_wanted() {
  const char* at = std::getenv("FLOE_TEST_STOP_AT");
  if (!at) return {};
  Wanted wanted{at};
  if (const auto sign = wanted.name.find('@'); sign != std::string::npos) {
    const char* rank = std::getenv("RANK");
    if (!rank || wanted.name.substr(sign + 1) != rank) return {};
    wanted.name.resize(sign);
  }
  if (const char* after = std::getenv("FLOE_TEST_STOP_AFTER")) wanted.times = std::stol(after);
  return wanted;
}

void stop_if_wanted(const char* name) {
  static const Wanted wanted = read_wanted();
  static std::atomic<long> times{0};
  if (!wanted.name.empty() && wanted.name == name && ++times == wanted.times)
    ::kill(::getpid(), SIGKILL);
}

[[maybe_unused]] const bool kInstalled = [] {
  floe::checkpoint::at_commit_point = &stop_if_wanted;
  return true;
}();

}  // namespace
