// All ranks of the job: rendezvous, groups, and how failures travel.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/comm/group.h"
#include "floe/comm/rendezvous.h"

namespace floe::control {
class ControlPlane;
}

namespace floe::comm {

// The ranks as a grid: `shard` inside, `replicate` across.
//
//   world 4, shard size 2:    rank 0 1 | 2 3      shard groups {0,1} {2,3}
//                                                 replicate groups {0,2} {1,3}
// full_shard: one shard group of all ranks. no_shard: one replicate group of all ranks.
struct Mesh {
  GroupPtr world;
  GroupPtr shard;      // neighbours that hold the other slices of the same copy
  GroupPtr replicate;  // ranks that hold the same slice of other copies

  int shard_size() const { return shard->size(); }
  int replicate_size() const { return replicate->size(); }
};

struct NamedText {
  std::string name, text;
};

enum class Backend { automatic, gloo, nccl, fake };  // fake: World::fake

// "auto", "gloo", "nccl"; throws ConfigError otherwise.
Backend backend_from_name(const std::string& name);

struct WorldOptions {
  Backend backend = Backend::automatic;  // nccl where there is a GPU, else gloo
  // Default: a GPU with nccl, else the CPU. Without an index: GPU LOCAL_RANK with nccl; with gloo,
  // where ranks may share one, LOCAL_RANK modulo their number.
  std::optional<c10::Device> device;
  std::chrono::milliseconds timeout{600'000};
  Rendezvous rendezvous;
  // Gives all groups up as soon as a rank has failed or is gone. A device may otherwise wait
  // without end for a rank that is not there any more, a host until the timeout.
  bool watch_failures = true;
  // What the ranks work on, such as the folder of a run: those who say something else are refused.
  std::string run;
  // The network device for the traffic between hosts; empty: the one that reaches rank 0.
  std::string interface;
};

class World {
 public:
  // Collective: all ranks meet. Throws ConfigError for a backend this build does not have, and
  // where another rank has a wrong configuration; CommError when the others do not come within the
  // timeout, or one fails meanwhile.
  static std::shared_ptr<World> join(const WorldOptions& options);
  // From the environment that a launcher left (see find_rendezvous).
  static std::shared_ptr<World> join();
  // One process that acts as rank `rank` of `size` (see make_fake_group).
  static std::shared_ptr<World> fake(int rank, int size, c10::Device device = c10::kCPU,
                                     FakeListener listener = nullptr);
  // A rank that has met the others over this control plane and shares a store with them, but no
  // collectives: a thousand of them are threads of one process.
  static std::shared_ptr<World> without_collectives(std::shared_ptr<control::ControlPlane> plane,
                                                    std::chrono::milliseconds timeout);
  ~World();

  int rank() const;
  int size() const;
  int local_rank() const;
  c10::Device device() const;
  Backend backend() const;
  const std::string& source() const;
  std::chrono::milliseconds timeout() const;

  // The group of all ranks.
  const GroupPtr& group() const;
  // Collective (first call with that size): the grid with that many neighbours per shard group.
  // Throws ConfigError when the size does not divide the world.
  const Mesh& mesh(int shard_size);
  // Throws ConfigError where there is no such mesh. Not collective.
  void check_mesh(int shard_size) const;

  // What collectives have left in `tensor`, on the host. Throws CommError when one of them has
  // failed, which a device that computes does not tell otherwise.
  at::Tensor read(const at::Tensor& tensor) const;
  // Makes pending and later collectives of all groups fail on this rank. The others fail
  // when they notice.
  void abort();

  // "rank 3", with " on HOST" where there are several hosts.
  std::string name_of(int rank) const;
  // Where the ranks are, a line for each: "rank 4: h1 (10.0.0.7) cuda:0".
  std::vector<std::string> placement() const;
  bool on_several_hosts() const;
  // Ranks of this host, and of them those that have this rank's device; this one among them.
  int ranks_on_host() const;
  int ranks_on_device() const;
  // How many ranks each host has; hosts in the order of their first rank.
  std::vector<int> ranks_of_hosts() const;
  // Whether no rank of this host has a lower number.
  bool is_first_on_host() const;

  // The store: small strings that all ranks can write and read, apart from the collectives.
  void publish(const std::string& key, const std::string& value);
  // Waits for the key; nothing when it does not come in time or rank 0 is gone. A wait of
  // 0 looks once.
  std::optional<std::string> lookup(const std::string& key, std::chrono::milliseconds wait);
  // Waits for the key as long as a collective would. Throws CommError that says so (`missing`:
  // "rank 3 did not …") when it does not come in time, and when a rank has failed without having
  // published it.
  std::string hear(const std::string& key, const std::string& missing);
  // Waits for the key until it comes, with one request. `between` is called every now and then, and
  // may throw. Throws CommError when rank 0 is gone.
  std::string await(const std::string& key, const std::function<void()>& between);
  // Takes a key away.
  void forget(const std::string& key);
  // How often this was asked before, for names in the store that are used once: ranks that ask in
  // the same order have the same numbers.
  int count(const std::string& what);
  // Why rank 0, which keeps the store, cannot be asked any more; nothing while it can.
  std::optional<std::string> lost() const;
  // Collective: throws ConfigError on all ranks unless all have the same value under every name;
  // the first difference is named with both values and ranks. Ranks without any values have no
  // say; rank 0 must have some, if others do. The message says `what` the values are, and what to
  // do. Ranks send digests; only one that differs is asked for its values.
  void require_same(const std::string& what, const std::vector<NamedText>& values,
                    const std::string& advice);

  // Tells the others why this rank ends; never throws. The first announcement stays. `is_usage`: it
  // is a wrong configuration, for which all ranks end with that exit code.
  void announce_failure(const std::string& cause, bool is_usage = false) noexcept;
  // "rank 2: <cause>" of the rank that failed first, if one has within the wait: it said so, or is
  // gone without a word.
  std::optional<std::string> first_failure(std::chrono::milliseconds wait) noexcept;

  // The first failure is a wrong configuration.
  bool failed_by_usage() const noexcept;
  // The first failure is that of a rank which is gone without a word: it will not come any more.
  bool failed_rank_is_gone() const noexcept;
  // Logs why this rank ends and tells the others, before anything else is done about it. Where the
  // cause is another rank's failure, that one is named; where a collective has timed out, what all
  // ranks are doing. A later call says the same once more, as a last line. Never throws.
  void fail(const std::exception_ptr& cause) noexcept;
  // What `fail` has said; empty: it has not been called.
  const std::string& failure() const;

  // What every rank is doing, by rank (see Activity); a rank that does not answer has no text.
  std::vector<std::string> states();
  // The same of one rank.
  std::string state_of(int rank);

 private:
  struct State;
  explicit World(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Runs a rank's work and returns the exit code of the process. What it throws goes to World::fail;
// the last line of the log is the cause. Where the first failure of all ranks is a wrong
// configuration, every rank that fails returns what that one does, whether it hears of it by a
// collective, by a save that is given up, or fails by itself.
int guarded(World& world, const std::function<void()>& work);

}  // namespace floe::comm
