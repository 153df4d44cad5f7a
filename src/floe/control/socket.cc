#include "floe/control/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#include "floe/core/error.h"
#include "floe/core/host.h"

namespace floe::control {
namespace {

using namespace std::chrono_literals;
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

// See Note [Peers that are gone].
void watch_peer(int fd) {
  constexpr int kIdle = 3, kEvery = 1;
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdle);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kEvery);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, static_cast<int>(kSilence.count()) - kIdle);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(kSilence / 1ms));
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}

AddressList resolve(const Address& address, int type, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  const int status =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (status != 0) why = str("the name '", address.host, "' is unknown: ", ::gai_strerror(status));
  return {status == 0 ? found : nullptr, &freeaddrinfo};
}

std::string text_of(const sockaddr_storage& address) {
  std::array<char, NI_MAXHOST> host{};
  const bool v6 = address.ss_family == AF_INET6;
  const socklen_t size = v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(),
                    nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  constexpr std::string_view kMapped = "::ffff:";  // an IPv4 address on a socket for both
  std::string text = host.data();
  if (text.starts_with(kMapped)) text.erase(0, kMapped.size());
  return text;
}

// Waits until the connection under way is made or has failed; 0, or why not.
int finish_connecting(int fd, Clock::time_point deadline) {
  pollfd waited{fd, POLLOUT, 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  if (::poll(&waited, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 1))) <= 0)
    return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1";
}

std::string host_id() { return str(host_name(), "/", boot_id()); }

UniqueFd try_to_listen(int port, bool loopback_only, int& error) {
  const int family = loopback_only ? AF_INET : AF_INET6;
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool v6 = fd && !loopback_only;
  if (!fd) fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    error = errno;
    return {};
  }
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_storage place{};
  socklen_t size = sizeof(sockaddr_in);
  if (v6) {
    set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    auto& address = reinterpret_cast<sockaddr_in6&>(place);
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<std::uint16_t>(port));
    size = sizeof address;
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(place);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
  }
  constexpr int kWaiting = 1024;
  const bool good = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&place), size) == 0 &&
                    ::listen(fd.get(), kWaiting) == 0;
  error = good ? 0 : errno;
  return good ? std::move(fd) : UniqueFd();
}

UniqueFd listen_at(int port, bool loopback_only, Clock::time_point deadline) {
  for (;;) {
    int error = 0;
    if (UniqueFd fd = try_to_listen(port, loopback_only, error)) return fd;
    const bool in_use = error == EADDRINUSE;
    require<CommError>(in_use && Clock::now() < deadline, "rank 0 cannot listen at port ", port,
                       " of ", host_name(), ": ", std::strerror(error),
                       in_use ? "; another job may be using it: set MASTER_PORT (or the port of "
                                "dist.init) to a free one, the same for all ranks"
                              : "");
    std::this_thread::sleep_for(100ms);
  }
}

int port_of(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

UniqueFd connect_to(const Address& address, Clock::time_point deadline, std::string& why) {
  const AddressList found = resolve(address, SOCK_STREAM, why);
  for (const addrinfo* one = found.get(); one; one = one->ai_next) {
    UniqueFd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) {
      why = std::strerror(errno);
      continue;
    }
    int error = ::connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) error = finish_connecting(fd.get(), deadline);
    if (error == 0) {
      watch_peer(fd.get());
      return fd;
    }
    why = std::strerror(error);
  }
  return {};
}

UniqueFd accept_from(const UniqueFd& listening) {
  UniqueFd fd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) watch_peer(fd.get());
  return fd;
}

std::int64_t allow_files(std::int64_t count) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto wanted = static_cast<rlim_t>(count);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(limit.rlim_max, wanted);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  constexpr auto kMost = static_cast<rlim_t>(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::int64_t>(std::min(limit.rlim_cur, kMost));
}

std::string local_address(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const bool known = ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  return known ? text_of(address) : "";
}

std::string peer_address(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const bool known = ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  return known ? text_of(address) : "";
}

namespace {

// A socket that would send to this host, and does not; none where the way is unknown.
UniqueFd towards(const std::string& host) {
  std::string why;
  constexpr int kAnyPort = 9;
  const AddressList found = resolve({host, kAnyPort}, SOCK_DGRAM, why);
  for (const addrinfo* one = found.get(); one; one = one->ai_next) {
    UniqueFd fd(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd && ::connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0) return fd;
  }
  return {};
}

}  // namespace

std::string route_to(const std::string& host) {
  const UniqueFd fd = towards(host);
  return fd ? local_address(fd) : "";
}

bool is_this_host(const std::string& host) {
  const UniqueFd fd = towards(host);
  return fd && local_address(fd) == peer_address(fd);
}

}  // namespace floe::control
