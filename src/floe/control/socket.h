// TCP connections between ranks, with time limits.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "floe/core/unique_fd.h"

namespace floe::control {

using Clock = std::chrono::steady_clock;

struct Address {
  std::string host;
  int port = 0;
};
inline std::string to_string(const Address& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

// Note [Peers that are gone]
// A process that ends closes its connections, and the other end knows at once. A host or a network
// that is gone closes nothing: the kernel asks an idle connection every second after three seconds
// of silence, and gives up what has had no answer for kSilence. A quarter of all packets may be
// lost without that, and a process that is merely stopped still answers.
constexpr std::chrono::seconds kSilence{20};

// True for 127.*, ::1, localhost.
bool is_loopback(const std::string& host);
// Whether this name or address is one of this host's own.
bool is_this_host(const std::string& host);
// host_name(), with what differs where two hosts have the same name.
std::string host_id();

// A socket that listens: on the loopback device alone, or on all. Port 0: any that is free. One
// attempt; where it does not listen, `error` is the errno.
UniqueFd try_to_listen(int port, bool loopback_only, int& error);
// The same for ranks that are to meet there. A port that is in use is tried again until the
// deadline. Throws CommError.
UniqueFd listen_at(int port, bool loopback_only, Clock::time_point deadline);
int port_of(const UniqueFd& socket);

// One attempt. Not connected: the reason is in `why`.
UniqueFd connect_to(const Address& address, Clock::time_point deadline, std::string& why);
// The next connection to a listening socket, or none: errno says why.
UniqueFd accept_from(const UniqueFd& listening);

// Lets this process have so many files and connections open at a time, as far as the system's hard
// limit goes. Returns how many it may have.
std::int64_t allow_files(std::int64_t count);
// How many a rank may want: a group of collectives may connect it with every other rank.
constexpr std::int64_t files_wanted(int world_size) { return 4 * std::int64_t{world_size} + 1024; }

// Of the two ends of a connection, without the port: "10.0.0.7".
std::string local_address(const UniqueFd& socket);
std::string peer_address(const UniqueFd& socket);
// The address of this host from which `host` is reached; empty where none is.
std::string route_to(const std::string& host);

}  // namespace floe::control
