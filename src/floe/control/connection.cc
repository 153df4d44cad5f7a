#include "floe/control/connection.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"

namespace floe::control {
namespace {

std::string reason_of(int error) {
  switch (error) {
    case 0:
    case ECONNRESET:
    case EPIPE: return "its process has ended without a word: it was killed, or crashed";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
      return str("it cannot be reached any more: its host or the network is gone (no answer for ",
                 kSilence.count(), " s)");
    default: return str("the connection to it has failed: ", std::strerror(error));
  }
}

}  // namespace

void Connection::send_frame(const std::string& frame) {
  if (!ended_.empty()) return;
  out_ += frame;
  flush();
}

void Connection::flush() {
  while (!out_.empty() && ended_.empty()) {
    const ssize_t sent = ::send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0)
      out_.erase(0, static_cast<std::size_t>(sent));
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      return;
    else if (errno != EINTR)
      out_.clear();  // what the other end still has to say can be read
  }
}

void Connection::receive() {
  std::array<char, 64 << 10> bytes;
  while (ended_.empty()) {
    const ssize_t count = ::recv(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0)
      in_.feed({bytes.data(), static_cast<std::size_t>(count)});
    else if (count == 0)
      ended_ = reason_of(0);
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      return;
    else if (errno != EINTR)
      ended_ = reason_of(errno);
  }
}

std::optional<Message> Connection::next() { return in_.next(); }

void Connection::half_close() { ::shutdown(fd(), SHUT_WR); }

Wakeup::Wakeup() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  require(static_cast<bool>(fd_), "cannot make an event descriptor: ", std::strerror(errno));
}

void Wakeup::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd(), &one, sizeof one);
}

void Wakeup::clear() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd(), &count, sizeof count);
}

}  // namespace floe::control
