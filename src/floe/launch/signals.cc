#include "floe/launch/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "floe/core/error.h"

namespace floe::launch {

SignalReader::SignalReader(bool last) : last_(last) {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&wanted, number);
  }
  std::signal(SIGCHLD, SIG_DFL);
  std::signal(SIGPIPE, SIG_IGN);  // when nobody reads any more, the ranks go on
  pthread_sigmask(SIG_BLOCK, &wanted, &before_);
  fd_ = UniqueFd(signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
  require(static_cast<bool>(fd_), "cannot watch signals: ", std::strerror(errno));
}

SignalReader::~SignalReader() {
  while (next()) continue;
  if (last_ && asked_to_end_)
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_IGN);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int SignalReader::next() {
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof info) != sizeof info) return 0;
  const int number = static_cast<int>(info.ssi_signo);
  asked_to_end_ = asked_to_end_ || number == SIGINT || number == SIGTERM || number == SIGHUP;
  return number;
}

}  // namespace floe::launch
