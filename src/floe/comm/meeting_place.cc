#include "floe/comm/meeting_place.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "floe/comm/group.h"
#include "floe/control/socket.h"
#include "floe/core/error.h"
#include "floe/core/host.h"
#include "floe/version.h"

namespace floe::comm {
namespace {

using namespace std::chrono_literals;
using control::Address;
using control::Clock;
using control::ControlPlane;

// A port may be in use by a job that is about to end.
constexpr auto kPortWait = 10s;

// Note [Attempts]
// torchrun starts ranks again after a failure, and its agents' store outlives them. Each agent
// counts restarts for itself, so the count is no common name. Rank 0 counts itself in the store and
// leaves the place where it listens under that number; the others go to the newest one. Where that
// is still the one of the attempt before, nobody listens any more, or a rank of their number is
// there already: they look again.
class AgentStore {
 public:
  AgentStore(const Rendezvous& r, std::chrono::milliseconds timeout)
      : name_(control::to_string({r.host, r.port})), timeout_(timeout) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(r.port);
    options.timeout = timeout;
    options.waitWorkers = false;
    options.multiTenant = true;
    const std::string host = r.host;
    store_ = within<Store>(
        [host, options] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  }

  void announce(const Address& address) {
    within<bool>([store = store_, address] {
      const std::int64_t attempt = store->add(kAttempts, 1);
      store->set(key_of(attempt), control::to_string(address));
      return true;
    });
  }

  std::optional<Address> newest(std::string& why) {
    const std::string text = within<std::string>([store = store_]() -> std::string {
      const std::int64_t attempt = store->add(kAttempts, 0);
      if (attempt == 0 || !store->check({key_of(attempt)})) return "";
      return store->get_to_str(key_of(attempt));
    });
    const auto colon = text.rfind(':');
    if (colon == std::string::npos) {
      why = str("rank 0 has not come to torchrun's store at ", name_);
      return std::nullopt;
    }
    std::string host = text.substr(0, colon);
    if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
    return Address{host, std::stoi(text.substr(colon + 1))};
  }

 private:
  using Store = c10::intrusive_ptr<c10d::Store>;
  static constexpr const char* kAttempts = "floe/attempts";
  static std::string key_of(std::int64_t attempt) { return str("floe/attempt/", attempt); }

  // TCPStore waits without an end for a server that hangs. The thread that does is left behind.
  template <class T>
  T within(std::function<T()> call) const {
    auto promise = std::make_shared<std::promise<T>>();
    std::future<T> result = promise->get_future();
    std::thread([promise, call = std::move(call)] {
      try {
        promise->set_value(call());
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    }).detach();
    require<CommError>(result.wait_for(timeout_ + 5s) == std::future_status::ready,
                       "torchrun's store at ", name_, " does not answer; look at its agent there");
    try {
      return result.get();
    } catch (const std::exception& e) {
      throw CommError(str("torchrun's store at ", name_, " cannot be used: ", cause_of(e)));
    }
  }

  std::string name_;
  std::chrono::milliseconds timeout_;
  Store store_;
};

// The name of this host for the others.
std::string own_address(const Rendezvous& r) {
  const std::string route = control::route_to(r.host);
  return route.empty() || control::is_loopback(route) ? r.host : route;
}

}  // namespace

std::shared_ptr<ControlPlane> meet(const Rendezvous& r, control::Member self,
                                   std::chrono::milliseconds timeout) {
  self.rank = r.rank;
  self.world_size = r.world_size;
  self.local_rank = r.local_rank;
  self.job = r.job;
  self.version = kVersion;
  self.host = host_name();
  self.host_id = control::host_id();
  self.pid = ::getpid();
  if (r.world_size == 1 && r.host.empty()) return ControlPlane::alone(self);

  std::optional<AgentStore> agent;
  if (r.store_is_external) agent.emplace(r, timeout);
  if (r.rank == 0) {
    const auto port_deadline = Clock::now() + std::min<Clock::duration>(timeout, kPortWait);
    UniqueFd listening =
        control::listen_at(agent ? 0 : r.port, control::is_loopback(r.host), port_deadline);
    if (agent) agent->announce({own_address(r), control::port_of(listening)});
    return ControlPlane::serve(self, std::move(listening), timeout);
  }
  const auto where = [&](std::string& why) -> std::optional<Address> {
    if (agent) return agent->newest(why);
    return Address{r.host, r.port};
  };
  return ControlPlane::join(self, where, timeout);
}

}  // namespace floe::comm
