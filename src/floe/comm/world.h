// All ranks of the job: rendezvous, groups, and how failures travel.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "floe/comm/group.h"
#include "floe/comm/rendezvous.h"

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

enum class Backend { automatic, gloo, nccl, mpi, fake };

// "auto", "gloo", "nccl", "mpi", "fake"; throws ConfigError otherwise.
Backend backend_from_name(const std::string& name);

struct WorldOptions {
  Backend backend = Backend::automatic;  // nccl where there is a GPU, else gloo
  // Default: a GPU with nccl, else the CPU. Without an index: GPU LOCAL_RANK with nccl; with gloo,
  // where ranks may share one, LOCAL_RANK modulo their number.
  std::optional<c10::Device> device;
  std::chrono::milliseconds timeout{600'000};
  Rendezvous rendezvous;
  // Gives all groups up soon after a rank has announced its failure, or the store is gone with
  // rank 0. Default: with nccl, whose devices may wait without end for a rank that is not
  // there any more.
  std::optional<bool> watch_failures;
};

class World {
 public:
  // Collective: all ranks meet. Throws ConfigError for a backend this build does not have,
  // CommError when the others do not come within the timeout.
  static std::shared_ptr<World> join(const WorldOptions& options);
  // From the environment that a launcher left (see find_rendezvous).
  static std::shared_ptr<World> join();
  // One process that acts as rank `rank` of `size` (see make_fake_group).
  static std::shared_ptr<World> fake(int rank, int size, c10::Device device = c10::kCPU);
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

  // What collectives have left in `tensor`, on the host. Throws CommError when one of them has
  // failed, which a device that computes does not tell otherwise.
  at::Tensor read(const at::Tensor& tensor) const;
  // Makes pending and later collectives of all groups fail on this rank. The others fail
  // when they notice.
  void abort();

  // The store: small strings that all ranks can write and read, apart from the collectives.
  void publish(const std::string& key, const std::string& value);
  // Waits for the key; nothing when it does not come in time or the store is gone. A wait of
  // 0 looks once.
  std::optional<std::string> lookup(const std::string& key, std::chrono::milliseconds wait);

  // Tells the others why this rank ends; never throws. The first announcement stays.
  void announce_failure(const std::string& cause) noexcept;
  // "rank 2: <cause>" of the rank that failed first, if one said so within the wait.
  std::optional<std::string> first_failure(std::chrono::milliseconds wait) noexcept;

 private:
  struct State;
  explicit World(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Runs a rank's work and returns the exit code of the process. A rank that fails logs its cause and
// leaves it in the store; a rank whose collective failed because of another one logs that rank's
// cause beside its own.
int guarded(World& world, const std::function<void()>& work);

}  // namespace floe::comm
