// A port of the loopback device at which programs of this machine ask for the numbers of a run.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "floe/core/unique_fd.h"

namespace floe::observe {

// Answers `GET /metrics` over HTTP with what `text` says at that moment, one after the other and
// from a thread of its own: also while the run stands still. Nobody outside of this machine reaches
// it.
class MetricsPort {
 public:
  // `text` is called by that thread; it may not throw. Throws ConfigError where nobody can listen
  // at the port.
  MetricsPort(int port, std::function<std::string()> text);
  // An answer under way is broken off.
  ~MetricsPort();
  MetricsPort(const MetricsPort&) = delete;
  MetricsPort& operator=(const MetricsPort&) = delete;

  // Throws ConfigError, with the reason, where nobody can listen at the port now.
  static void check(int port);

 private:
  void serve();
  void answer(const UniqueFd& client) const;

  UniqueFd listening_, stop_;
  std::function<std::string()> text_;
  std::thread thread_;
};

}  // namespace floe::observe
