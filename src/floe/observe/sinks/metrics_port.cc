#include "floe/observe/sinks/metrics_port.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "floe/control/socket.h"
#include "floe/core/error.h"
#include "floe/core/host.h"
#include "floe/core/str.h"

namespace floe::observe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{2};      // with one client, in all: others wait behind it
constexpr std::size_t kLongestRequest = 8 << 10;  // bytes

UniqueFd listen_on_loopback(int port) {
  int error = 0;
  UniqueFd socket = control::try_to_listen(port, /*loopback_only=*/true, error);
  if (!socket)
    throw ConfigError(
        str("log.prometheus: nobody can listen at port ", port, " of ", host_name(), ": ",
            std::strerror(error),
            error == EADDRINUSE ? "; another run or program has it, choose another" : ""));
  return socket;
}

// Until the socket is ready; false at the deadline and when everything is to stop.
bool ready(int socket, short events, int stop, Clock::time_point deadline) {
  for (;;) {
    std::array<pollfd, 2> waited{pollfd{socket, events, 0}, pollfd{stop, POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const int found = ::poll(waited.data(), waited.size(),
                             static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000)));
    if (found < 0 && errno == EINTR) continue;
    if (found <= 0 || waited[1].revents != 0) return false;
    return true;
  }
}

// Up to the empty line that ends a request's head.
std::string read_head(int client, int stop, Clock::time_point deadline) {
  std::string head;
  std::array<char, 1024> bytes{};
  while (head.find("\r\n\r\n") == std::string::npos && head.size() < kLongestRequest) {
    if (!ready(client, POLLIN, stop, deadline)) return "";
    const ssize_t got = ::recv(client, bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return "";
    head.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return head;
}

void send_all(int client, std::string_view text, int stop, Clock::time_point deadline) {
  while (!text.empty()) {
    const ssize_t sent = ::send(client, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent > 0)
      text.remove_prefix(static_cast<std::size_t>(sent));
    else if (errno != EINTR && (errno != EAGAIN || !ready(client, POLLOUT, stop, deadline)))
      return;
  }
}

std::string response(std::string_view status, std::string_view type, const std::string& body,
                     bool with_body) {
  return str("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
             "\r\nConnection: close\r\n\r\n", with_body ? body : "");
}

}  // namespace

MetricsPort::MetricsPort(int port, std::function<std::string()> text)
    : listening_(listen_on_loopback(port)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      text_(std::move(text)) {
  require(static_cast<bool>(stop_), "log.prometheus: ", std::strerror(errno));
  thread_ = std::thread([this] { serve(); });
}

MetricsPort::~MetricsPort() {
  const std::uint64_t one = 1;
  // It cannot fail: the counter begins at 0.
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void MetricsPort::check(int port) { listen_on_loopback(port); }

void MetricsPort::serve() {
  constexpr std::chrono::hours kLong{1};
  for (;;) {
    const bool asked = ready(listening_.get(), POLLIN, stop_.get(), Clock::now() + kLong);
    std::array<pollfd, 1> stop{pollfd{stop_.get(), POLLIN, 0}};
    if (::poll(stop.data(), 1, 0) > 0) return;
    if (!asked) continue;
    if (const UniqueFd client = control::accept_from(listening_))
      answer(client);
    else
      ::poll(stop.data(), 1, 100);  // no file descriptor is left: later there may be one
  }
}

void MetricsPort::answer(const UniqueFd& client) const {
  const auto deadline = Clock::now() + kPatience;
  const std::string head = read_head(client.get(), stop_.get(), deadline);
  if (head.empty()) return;
  const std::string line = head.substr(0, head.find("\r\n"));
  const auto path_at = line.find(' ') + 1;  // 0 where there is none
  const std::string method = line.substr(0, path_at == 0 ? 0 : path_at - 1);
  const std::string path = line.substr(path_at, line.find_first_of(" ?", path_at) - path_at);
  const bool whole = method != "HEAD";
  constexpr const char* kPlain = "text/plain; charset=utf-8";
  std::string out;
  if (head.find("\r\n\r\n") == std::string::npos)
    out =
        response("431 Request Header Fields Too Large", kPlain, "the request is too long\n", true);
  else if (method != "GET" && method != "HEAD")
    out = response("405 Method Not Allowed", kPlain, "only GET is answered\n", true);
  else if (path != "/metrics")
    out = response("404 Not Found", kPlain, "the numbers are at /metrics\n", whole);
  else
    out = response("200 OK", "text/plain; version=0.0.4; charset=utf-8", text_(), whole);
  send_all(client.get(), out, stop_.get(), deadline);
  ::shutdown(client.get(), SHUT_WR);
  // What is closed while something is unread takes the answer back.
  std::array<char, 1024> rest{};
  const auto last = std::min(deadline, Clock::now() + std::chrono::milliseconds(200));
  while (ready(client.get(), POLLIN, stop_.get(), last))
    if (::recv(client.get(), rest.data(), rest.size(), 0) <= 0) break;
}

}  // namespace floe::observe
