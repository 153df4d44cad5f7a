// One end of a control connection: what is to be sent waits here, nobody waits for it.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "floe/control/message.h"
#include "floe/control/socket.h"

namespace floe::control {

// From whoever has not said who it is, and from a rank.
constexpr std::size_t kMostOfStranger = 64 << 10, kMostOfMember = 1 << 30;

class Connection {
 public:
  explicit Connection(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  const UniqueFd& socket() const { return socket_; }
  bool has_unsent() const { return !out_.empty(); }
  // Why the connection is of no use any more; empty while it is.
  const std::string& ended() const { return ended_; }
  void trust() { in_.set_most(kMostOfMember); }

  void send(const Message& message) { send_frame(frame_of(message)); }
  // Made once for many ends.
  void send_frame(const std::string& frame);
  // Sends what the kernel takes.
  void flush();
  // Reads what has arrived.
  void receive();
  // The next whole message. Throws DataError for bytes that are none.
  std::optional<Message> next();
  // No more will be sent; what the other end has sent can still be read.
  void half_close();

 private:
  UniqueFd socket_;
  FrameReader in_{kMostOfStranger};
  std::string out_, ended_;
};

// Wakes a thread that polls.
class Wakeup {
 public:
  Wakeup();
  int fd() const { return fd_.get(); }
  void wake();
  void clear();

 private:
  UniqueFd fd_;
};

}  // namespace floe::control
