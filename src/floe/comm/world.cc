#include "floe/comm/world.h"

#include <ATen/Context.h>
#include <ATen/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "floe/comm/backends.h"
#include "floe/comm/watch.h"
#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::comm {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
constexpr const char* kFailureKey = "failure";
constexpr std::chrono::milliseconds kLookEvery{1000};

// Operators and streams that name no device mean this one, and fp32 is fp32 there: cuDNN's
// convolutions would round their inputs to tf32 otherwise.
void use_device(const c10::Device& device) {
  if (device.is_cpu()) return;
  at::globalContext().lazyInitDevice(device.type());  // its allocator can be asked from now on
  if (device.has_index()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  at::globalContext().setAllowTF32CuDNN(false);
}

StorePtr meet(const Rendezvous& r, std::chrono::milliseconds timeout) {
  if (r.world_size == 1 && r.host.empty()) return c10::make_intrusive<c10d::HashStore>();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(r.port);
  options.isServer = r.rank == 0 && !r.store_is_external;
  options.timeout = timeout;
  options.waitWorkers = false;
  options.multiTenant = true;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(r.host, options);
    // What ranks of an earlier attempt have left there is not for these.
    return c10::make_intrusive<c10d::PrefixStore>(str("floe/", r.attempt), store);
  } catch (const std::exception& e) {
    throw CommError(str("rank ", r.rank, " of ", r.world_size, " could not reach the store at ",
                        r.host, ":", r.port, " within ", timeout.count() / 1000,
                        " s; check that rank 0 runs and that the port is free and reachable (",
                        std::string(e.what()).substr(0, std::string(e.what()).find('\n')), ")"));
  }
}

}  // namespace

struct World::State {
  Rendezvous place;
  Backend backend = Backend::gloo;
  c10::Device device = c10::kCPU;
  std::chrono::milliseconds timeout{600'000};
  StorePtr store;
  StorePtr watched;  // the watch's own connection to it
  GroupPtr group;
  std::map<int, Mesh> meshes;
  std::mutex meshes_mutex;       // the watch reads them
  std::unique_ptr<Watch> watch;  // last: ends before what it looks at

  std::vector<GroupPtr> groups() {
    std::lock_guard lock(meshes_mutex);
    std::vector<GroupPtr> all{group};
    for (const auto& [size, mesh] : meshes)
      for (const GroupPtr& part : {mesh.shard, mesh.replicate})
        if (std::find(all.begin(), all.end(), part) == all.end()) all.push_back(part);
    return all;
  }

  // At the same time: giving up one NCCL group may wait for a kernel of another one, which waits
  // for a rank that is gone.
  void abort() {
    std::vector<std::future<void>> ended;
    for (const GroupPtr& each : groups())
      ended.push_back(std::async(std::launch::async, [each] { each->abort(); }));
    for (auto& one : ended) one.get();
  }

  bool has_failed() {
    try {
      if (watched->check({kFailureKey})) return true;
      for (const GroupPtr& each : groups()) each->check();
      return false;
    } catch (const std::exception&) {
      return true;  // a group has failed, or rank 0 has gone and the store with it
    }
  }

  void watch_failures() {
    watched = store->clone();  // others may wait long on theirs
    watch = std::make_unique<Watch>(kLookEvery, [this] {
      if (!has_failed()) return false;
      abort();
      return true;
    });
  }

  // Collective among the members: a group of `size` ranks in which this one has `rank`.
  GroupPtr make_group(const std::string& name, int rank, int size) {
    if (backend == Backend::fake) return make_fake_group(name, rank, size);
    if (size == 1) return make_fake_group(name, 0, 1);  // alone: nothing to exchange
    const auto keys = c10::make_intrusive<c10d::PrefixStore>("group/" + name, store);
    if (backend == Backend::nccl) return make_nccl_group(name, keys, rank, size, timeout, device);
    return make_gloo_group(name, keys, rank, size, timeout, place.host);
  }
};

Backend backend_from_name(const std::string& name) {
  static const std::map<std::string, Backend> kNames{{"auto", Backend::automatic},
                                                     {"gloo", Backend::gloo},
                                                     {"nccl", Backend::nccl},
                                                     {"mpi", Backend::mpi},
                                                     {"fake", Backend::fake}};
  const auto found = kNames.find(name);
  require<ConfigError>(found != kNames.end(), "dist.backend '", name,
                       "' is not one of auto, gloo, nccl, mpi, fake");
  return found->second;
}

World::World(std::unique_ptr<State> state) : state_(std::move(state)) {}
World::~World() = default;

std::shared_ptr<World> World::join(const WorldOptions& options) {
  auto state = std::make_unique<State>();
  state->place = options.rendezvous;
  state->timeout = options.timeout;
  const bool gpu = has_nccl() && at::hasCUDA();
  state->backend = options.backend;
  if (state->backend == Backend::automatic) {
    const bool wants_cpu = options.device && options.device->is_cpu();
    state->backend = gpu && !wants_cpu ? Backend::nccl : Backend::gloo;
  }
  require<ConfigError>(
      state->backend != Backend::mpi,
      "dist.backend 'mpi': LibTorch 2.11.0 from PyPI is built without MPI; use gloo "
      "or nccl (mpirun still works as the launcher)");
  require<ConfigError>(state->backend != Backend::fake,
                       "dist.backend 'fake' acts as one rank of many: it is for planning and "
                       "measuring, where rank and world size are given");
  require<ConfigError>(state->backend != Backend::nccl || gpu,
                       "dist.backend 'nccl' needs a GPU and a build with CUDA (FLOE_CUDA=1 ./run "
                       "build); use gloo on the CPU");
  state->device = options.device.value_or(state->backend == Backend::nccl ? c10::kCUDA : c10::kCPU);
  if (!state->device.is_cpu()) {
    require<ConfigError>(gpu, "rank ", state->place.rank, " is to use device ", state->device.str(),
                         ", which needs a GPU and a build with CUDA (FLOE_CUDA=1 ./run build); set "
                         "dist.device to cpu");
    const c10::impl::VirtualGuardImpl devices(state->device.type());
    if (!state->device.has_index()) {
      const int local = state->place.local_rank;
      const int count = static_cast<unsigned char>(devices.deviceCount());
      state->device.set_index(static_cast<c10::DeviceIndex>(
          state->backend == Backend::gloo && count > 0 ? local % count : local));
    }
    require<ConfigError>(state->device.index() < devices.deviceCount(), "rank ", state->place.rank,
                         " is to use device ", state->device.str(), " but this machine has ",
                         static_cast<int>(devices.deviceCount()),
                         " of them; start at most that many ranks on a machine, or let them share: "
                         "dist.backend gloo "
                         "with dist.device cuda");
  }
  use_device(state->device);
  log::set_rank(state->place.rank, state->place.world_size);
  state->store = meet(state->place, state->timeout);
  state->group = state->make_group("world", state->place.rank, state->place.world_size);
  if (state->place.world_size > 1 &&
      options.watch_failures.value_or(state->backend == Backend::nccl))
    state->watch_failures();
  return std::shared_ptr<World>(new World(std::move(state)));
}

std::shared_ptr<World> World::join() {
  WorldOptions options;
  options.rendezvous = find_rendezvous({}, process_environment());
  return join(options);
}

std::shared_ptr<World> World::fake(int rank, int size, c10::Device device) {
  require<ConfigError>(size >= 1 && rank >= 0 && rank < size, "rank ", rank,
                       " does not fit a world of ", size, " ranks");
  auto state = std::make_unique<State>();
  state->backend = Backend::fake;
  state->device = device;
  use_device(device);
  state->place.rank = rank;
  state->place.world_size = size;
  state->place.source = "a fake world";
  state->store = c10::make_intrusive<c10d::HashStore>();
  state->group = state->make_group("world", rank, size);
  return std::shared_ptr<World>(new World(std::move(state)));
}

int World::rank() const { return state_->place.rank; }
int World::size() const { return state_->place.world_size; }
int World::local_rank() const { return state_->place.local_rank; }
c10::Device World::device() const { return state_->device; }
Backend World::backend() const { return state_->backend; }
const std::string& World::source() const { return state_->place.source; }
std::chrono::milliseconds World::timeout() const { return state_->timeout; }
const GroupPtr& World::group() const { return state_->group; }

const Mesh& World::mesh(int shard_size) {
  const auto found = state_->meshes.find(shard_size);
  if (found != state_->meshes.end()) return found->second;
  require<ConfigError>(shard_size >= 1 && size() % shard_size == 0, "a shard group of ", shard_size,
                       " ranks does not divide the world of ", size(), "; choose a size that does");
  Mesh mesh;
  mesh.world = group();
  const int row = rank() / shard_size, column = rank() % shard_size;
  mesh.shard = shard_size == size()
                   ? group()
                   : state_->make_group(str("shard", shard_size, "/", row), column, shard_size);
  const int copies = size() / shard_size;
  mesh.replicate = copies == size()
                       ? group()
                       : state_->make_group(str("replicate", shard_size, "/", column), row, copies);
  std::lock_guard lock(state_->meshes_mutex);
  return state_->meshes.emplace(shard_size, std::move(mesh)).first->second;
}

at::Tensor World::read(const at::Tensor& tensor) const {
  at::Tensor host = tensor.cpu();
  for (const GroupPtr& each : state_->groups()) each->check();
  return host;
}

void World::abort() { state_->abort(); }

void World::publish(const std::string& key, const std::string& value) {
  state_->store->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

std::optional<std::string> World::lookup(const std::string& key, std::chrono::milliseconds wait) {
  try {
    if (wait.count() > 0)
      state_->store->wait({key}, wait);
    else if (!state_->store->check({key}))
      return std::nullopt;
    const auto bytes = state_->store->get(key);
    return std::string(bytes.begin(), bytes.end());
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void World::announce_failure(const std::string& cause) noexcept {
  try {
    // The first rank to count itself writes; later ones find a number above 1.
    if (state_->store->add(str(kFailureKey, "/count"), 1) == 1)
      publish(kFailureKey, str("rank ", rank(), ": ", cause));
  } catch (const std::exception&) {
    // The store may be gone with rank 0: the log has the cause already.
  }
}

std::optional<std::string> World::first_failure(std::chrono::milliseconds wait) noexcept {
  try {
    return lookup(kFailureKey, wait);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

namespace {

// Rank 0 holds the store: it stays a moment so that the others can still read the cause.
void let_others_read(const World& world) {
  if (world.rank() == 0 && world.size() > 1) std::this_thread::sleep_for(std::chrono::seconds(1));
}

// The others need not wait for a collective in which this rank is missing, nor this rank for them.
void leave(World& world, const std::string& cause) {
  world.announce_failure(cause);
  let_others_read(world);
  world.abort();
}

void fail(World& world, const std::string& cause) {
  log::error(cause);
  leave(world, cause);
}

}  // namespace

int guarded(World& world, const std::function<void()>& work) {
  try {
    work();
    return static_cast<int>(Exit::done);
  } catch (const CommError& e) {
    // Usually the echo of another rank's failure.
    const auto first = world.first_failure(std::chrono::seconds(2));
    log::error(e.what(), first ? str(" (the first failure was that of ", *first, ")") : "");
    leave(world, e.what());
    return static_cast<int>(e.exit());
  } catch (const Error& e) {
    fail(world, e.what());
    return static_cast<int>(e.exit());
  } catch (const std::exception& e) {
    fail(world, cause_of(e));
    return static_cast<int>(Exit::failed);
  }
}

}  // namespace floe::comm
