#include "floe/comm/world.h"

#include <ATen/Context.h>
#include <ATen/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "floe/comm/activity.h"
#include "floe/comm/backends.h"
#include "floe/comm/control_store.h"
#include "floe/comm/meeting_place.h"
#include "floe/comm/placement.h"
#include "floe/comm/slow_waits.h"
#include "floe/comm/watch.h"
#include "floe/control/control_plane.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/host.h"
#include "floe/core/log.h"

namespace floe::comm {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
constexpr std::chrono::milliseconds kLookEvery{50};  // at what this process knows already

// Operators and streams that name no device mean this one, and fp32 is fp32 there: cuDNN's
// convolutions would round their inputs to tf32 otherwise.
void use_device(const c10::Device& device) {
  if (device.is_cpu() || device.is_meta()) return;
  at::globalContext().lazyInitDevice(device.type());  // its allocator can be asked from now on
  if (device.has_index()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  at::globalContext().setAllowTF32CuDNN(false);
}

// The GPUs that a scheduler or the user lets this process see; null: all.
const char* visible_devices() {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  return text && *text ? text : nullptr;
}

bool sees_gpu() { return has_nccl() && at::hasCUDA(); }
// What is missing then.
const char* without_gpu() {
  return has_nccl()
             ? "a GPU, and this process sees none: look at nvidia-smi and CUDA_VISIBLE_DEVICES"
             : "a GPU and a build with CUDA (FLOE_CUDA=1 ./run build)";
}

bool names_index(const std::optional<c10::Device>& device) { return device && device->has_index(); }

Backend choose_backend(const WorldOptions& options) {
  Backend backend = options.backend;
  if (backend == Backend::automatic) {
    const bool wants_cpu = options.device && options.device->is_cpu();
    backend = sees_gpu() && !wants_cpu ? Backend::nccl : Backend::gloo;
  }
  require<ConfigError>(backend != Backend::fake,
                       "nobody joins a fake world; World::fake(rank, size) makes one");
  require<ConfigError>(backend != Backend::nccl || sees_gpu(), "dist.backend 'nccl' needs ",
                       without_gpu(), "; use gloo on the CPU");
  return backend;
}

// With an index, unless it is the CPU.
c10::Device choose_device(const WorldOptions& options, Backend backend) {
  const Rendezvous& place = options.rendezvous;
  c10::Device device = options.device.value_or(backend == Backend::nccl ? c10::kCUDA : c10::kCPU);
  if (device.is_cpu()) return device;
  require<ConfigError>(sees_gpu(), "rank ", place.rank, " is to use device ", device.str(),
                       ", which needs ", without_gpu(), "; set dist.device to cpu");
  const int count =
      static_cast<unsigned char>(c10::impl::VirtualGuardImpl(device.type()).deviceCount());
  if (!device.has_index()) {
    const int local = place.local_rank;
    // Schedulers may show a task the one GPU that is its own (srun --gpus-per-task=1).
    const bool wraps = backend == Backend::gloo || (count == 1 && visible_devices());
    device.set_index(static_cast<c10::DeviceIndex>(wraps && count > 0 ? local % count : local));
  }
  require<ConfigError>(device.index() < count, "rank ", place.rank, " is to use device ",
                       device.str(), " but this machine has ", count,
                       " of them; start at most that many ranks on a machine, or let them share: "
                       "dist.backend gloo with dist.device cuda");
  return device;
}

std::string encode(const std::vector<NamedText>& values) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, text] : values) list.push_back({name, text});
  std::string bytes;
  nlohmann::json::to_cbor(list, nlohmann::detail::output_adapter<char>(bytes));
  return bytes;
}

std::vector<NamedText> decode(const std::string& bytes) {
  std::vector<NamedText> values;
  for (const auto& one : nlohmann::json::from_cbor(bytes))
    values.push_back({one.at(0).get<std::string>(), one.at(1).get<std::string>()});
  return values;
}

std::string digest_of(const std::string& bytes) {
  return sha256_hex(std::as_bytes(std::span(bytes)));
}

// "'train.optimizer.lr' is 0.1 on rank 0 and 0.2 on rank 1"; empty when they are the same.
std::string first_difference(const std::vector<NamedText>& mine,
                             const std::vector<NamedText>& theirs, const std::string& me,
                             const std::string& them) {
  const auto value_of = [](const std::vector<NamedText>& values, const std::string& name) {
    const auto found = std::find_if(values.begin(), values.end(),
                                    [&](const NamedText& value) { return value.name == name; });
    return found == values.end() ? std::string("not set") : found->text;
  };
  for (const auto* values : {&mine, &theirs})
    for (const NamedText& value : *values) {
      const std::string here = value_of(mine, value.name), there = value_of(theirs, value.name);
      if (here != there)
        return str("'", value.name, "' is ", here, " on ", me, " and ", there, " on ", them);
    }
  return "";
}

// What a process returns that ends with this.
Exit exit_of(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const Error& e) {
    return e.exit();
  } catch (...) {
    return Exit::failed;
  }
}

}  // namespace

struct World::State {
  Rendezvous place;
  Backend backend = Backend::gloo;
  c10::Device device = c10::kCPU;
  std::chrono::milliseconds timeout{600'000};
  std::string interface;
  std::shared_ptr<control::ControlPlane> control;
  StorePtr store;  // what the groups see of it
  GroupPtr group;
  FakeListener listener;  // of a fake world
  std::map<int, Mesh> meshes;
  int num_compared = 0;
  std::mutex counted_mutex;
  std::map<std::string, int> counted;  // see World::count
  std::string failed_because;          // what World::fail has told
  std::unique_ptr<SlowWaits> waits;    // see connect
  std::mutex meshes_mutex;             // the watch reads them
  std::unique_ptr<Watch> watch;        // last: ends before what it looks at

  // Once, when rank and timeout are known.
  void connect(std::shared_ptr<control::ControlPlane> plane) {
    control = std::move(plane);
    waits = std::make_unique<SlowWaits>(*control, place.rank, timeout);
  }

  std::vector<GroupPtr> groups() {
    std::lock_guard lock(meshes_mutex);
    std::vector<GroupPtr> all{group};
    for (const auto& [size, mesh] : meshes)
      for (const GroupPtr& part : {mesh.shard, mesh.replicate})
        if (std::find(all.begin(), all.end(), part) == all.end()) all.push_back(part);
    return all;
  }

  // Collective. `run`: see WorldOptions.
  void meet_others(const std::string& run) {
    control::Member self;
    self.run = run;
    self.device = device.str();
    if (const char* visible = visible_devices(); visible && device.is_cuda())
      self.device += str(" of ", visible);
    connect(meet(place, self, timeout));
    waits->answer();
    store = c10::make_intrusive<ControlStore>(control, timeout);
    log::set_host(control->on_several_hosts() ? host_name() : "");
    if (!interface.empty()) ::setenv("NCCL_SOCKET_IFNAME", interface.c_str(), /*overwrite=*/0);
  }

  // Collective: the group of all ranks. A rank that cannot form it tells the others, which would
  // else wait for it.
  void form_group(bool refuses_shared_gpu) {
    try {
      wants_memory_of_host();  // throws for a wrong switch, also where no group would look at it
      if (refuses_shared_gpu) refuse_shared_gpu();
      group = make_group("world", in_order());
    } catch (const CommError& e) {  // the echo of another rank's failure, perhaps
      const auto first = control->first_failure(std::chrono::seconds(2));
      if (!first || first->rank == place.rank) {
        control->announce_failure(cause_of(e));
        throw;
      }
      const std::string why = echo(e, *first);
      if (first->is_usage) throw ConfigError(why);
      throw CommError(why);
    } catch (const std::exception& e) {
      control->announce_failure(cause_of(e), exit_of(std::current_exception()) == Exit::usage);
      throw;
    }
  }

  // First the store: NCCL's own thread tells rank 0 of every collective that has timed out, and a
  // group that ends waits for that thread, however long rank 0 does not answer.
  // Then all groups at the same time: giving up one NCCL group may wait for a kernel of another
  // one, which waits for a rank that is gone.
  void abort(const std::string& why) {
    control->give_up();
    std::vector<std::future<void>> ended;
    for (const GroupPtr& each : groups())
      ended.push_back(std::async(std::launch::async, [each, why] { each->abort(why); }));
    for (auto& one : ended) one.get();
  }

  // A group that has failed on its own (a connection that broke, a timeout of NCCL's) counts too.
  bool has_failed() {
    if (control->has_failed()) return true;
    try {
      for (const GroupPtr& each : groups()) each->check();
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }

  void watch_failures() {
    watch = std::make_unique<Watch>(kLookEvery, [this] {
      waits->look();
      if (!has_failed()) return false;
      const auto first = control->first_failure(std::chrono::milliseconds(0));
      abort(first ? str(control->name_of(first->rank), " has failed")
                  : std::string("a collective of this rank has failed"));
      return true;
    });
  }

  // NCCL has no place for two ranks on one GPU, unless it is told that they are on hosts of their
  // own, as in tests; then it looks by itself.
  void refuse_shared_gpu() const {
    if (std::getenv("NCCL_HOSTID") != nullptr) return;
    const Placement placed = placement();
    for (const control::Member& other : control->members())
      require<ConfigError>(other.rank == place.rank || !placed.on_own_device(other.rank), "ranks ",
                           place.rank, " and ", other.rank, " would use the same GPU of ",
                           other.host, " (", other.device,
                           "); start at most as many ranks on a host as it has GPUs, or let them "
                           "share: dist.backend gloo with dist.device cuda");
  }

  std::string hear(const std::string& key, const std::string& missing) {
    const control::Request request{control::Request::Op::get, {key}};
    std::optional<control::Reply> reply;
    try {
      reply = control->call(request, timeout, /*unless_failed=*/true);
    } catch (const CommError&) {
      // Who ends because of what it says is heard to end first, perhaps.
      reply = control->call(request, std::chrono::seconds(1));
      if (!reply) throw;
    }
    require<CommError>(reply.has_value(), missing, " in time");
    return reply->values.at(0);
  }

  // What rank 0 found when it compared; empty: all is the same.
  std::string verdict(const std::string& key, const std::string& what) {
    return hear(key, str(control->name_of(0), " did not compare ", what));
  }

  // The cause is told once: errors of the control plane's own have it already.
  std::string echo(const std::exception& e, const control::Failure& first) const {
    const std::string said = cause_of(e), rank = control->name_of(first.rank);
    const std::string told = str(rank, ": ", first.cause);
    return str(said, " ", kBecauseOf, said.find(told) == std::string::npos ? told : rank, ")");
  }

  // In one sentence, for the log and the other ranks.
  std::string describe_failure(const std::exception_ptr& cause) {
    try {
      std::rethrow_exception(cause);
    } catch (const CommError& e) {
      // Usually the echo of another rank's failure. Where it is not, the first ranks ask around,
      // and the others wait for what those say.
      const bool asks = place.rank < SlowWaits::kRanksThatTell;
      const auto first = control->first_failure(std::chrono::seconds(asks ? 2 : 10));
      if (first && first->rank != place.rank) return echo(e, *first);
      if (first || place.world_size == 1) return e.what();
      if (asks) return str(e.what(), "; what the ranks are doing: ", waits->sentence());
      return str(e.what(), control->rank_0_answers()
                               ? ""
                               : str("; ", control->name_of(0), " does not answer: it is stopped, ",
                                     "or its host hangs"));
    } catch (const std::exception& e) {
      // Where this ends with the exit code of another rank's wrong configuration, see guarded(),
      // the last line says whose. What every rank finds wrong by itself is nobody's echo.
      const auto first = control->first_failure(std::chrono::milliseconds(0));
      const bool of_other = first && first->is_usage && first->rank != place.rank;
      return of_other && exit_of(cause) != Exit::usage ? echo(e, *first) : cause_of(e);
    }
  }

  // The address of this host for Gloo's connections.
  std::string own_address() const {
    if (!control->on_several_hosts()) return "127.0.0.1";
    return control->members()[static_cast<std::size_t>(place.rank)].address;
  }

  // Who else is on this rank's host and device. A fake world has no others to ask.
  Placement placement() const { return {control->members(), control->own_rank()}; }

  std::vector<int> in_order() const {
    std::vector<int> ranks(static_cast<std::size_t>(place.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  // Collective among the members: a group of these ranks of the world, of which this is one.
  GroupPtr make_group(const std::string& name, const std::vector<int>& ranks) {
    const auto size = static_cast<int>(ranks.size());
    const auto rank =
        static_cast<int>(std::find(ranks.begin(), ranks.end(), place.rank) - ranks.begin());
    if (backend == Backend::fake)
      return make_fake_group(name, rank, size, size > 1 ? ranks[1] - ranks[0] : 1, listener);
    if (size == 1) return make_fake_group(name, 0, 1);  // alone: nothing to exchange
    const auto keys = c10::make_intrusive<c10d::PrefixStore>("group/" + name, store);
    if (backend == Backend::nccl) return make_nccl_group(name, keys, rank, size, timeout, device);
    const Placement placed = placement();
    std::vector<std::string> names;
    std::vector<int> here;
    for (int i = 0; i < size; ++i) {
      const int member = ranks[static_cast<std::size_t>(i)];
      names.push_back(control->name_of(member));
      if (placed.on_own_host(member)) here.push_back(i);
    }
    return make_gloo_group(name, keys, rank, std::move(names), here, timeout,
                           {interface, own_address()});
  }
};

Backend backend_from_name(const std::string& name) {
  static const std::map<std::string, Backend> kNames{
      {"auto", Backend::automatic}, {"gloo", Backend::gloo}, {"nccl", Backend::nccl}};
  const auto found = kNames.find(name);
  require<ConfigError>(found != kNames.end(), "dist.backend '", name,
                       "' is not one of auto, gloo, nccl");
  return found->second;
}

World::World(std::unique_ptr<State> state) : state_(std::move(state)) {}
World::~World() {
  state_->watch.reset();
  // Groups leave together, over the store; then the ranks do.
  state_->meshes.clear();
  state_->group.reset();
  state_->control->leave();
}

std::shared_ptr<World> World::join(const WorldOptions& options) {
  auto state = std::make_unique<State>();
  state->place = options.rendezvous;
  state->timeout = options.timeout;
  state->interface = options.interface;
  state->backend = choose_backend(options);
  state->device = choose_device(options, state->backend);
  use_device(state->device);
  log::set_rank(state->place.rank, state->place.world_size);
  state->meet_others(options.run);
  state->form_group(/*refuses_shared_gpu=*/state->backend == Backend::nccl &&
                    !state->device.is_cpu() && !names_index(options.device));
  if (state->place.world_size > 1 && options.watch_failures) state->watch_failures();
  return std::shared_ptr<World>(new World(std::move(state)));
}

std::shared_ptr<World> World::join() {
  WorldOptions options;
  options.rendezvous = find_rendezvous({}, process_environment());
  return join(options);
}

std::shared_ptr<World> World::fake(int rank, int size, c10::Device device, FakeListener listener) {
  require<ConfigError>(size >= 1 && rank >= 0 && rank < size, "rank ", rank,
                       " does not fit a world of ", size, " ranks");
  auto state = std::make_unique<State>();
  state->backend = Backend::fake;
  state->listener = std::move(listener);
  state->device = device;
  use_device(device);
  state->place.rank = rank;
  state->place.world_size = size;
  state->place.source = "a fake world";
  state->connect(control::ControlPlane::alone({}));
  state->group = state->make_group("world", state->in_order());
  return std::shared_ptr<World>(new World(std::move(state)));
}

std::shared_ptr<World> World::without_collectives(std::shared_ptr<control::ControlPlane> plane,
                                                  std::chrono::milliseconds timeout) {
  auto state = std::make_unique<State>();
  state->backend = Backend::fake;
  state->timeout = timeout;
  state->place.rank = plane->own_rank();
  state->place.world_size = static_cast<int>(plane->members().size());
  state->place.source = "a control plane alone";
  state->connect(std::move(plane));
  state->group = state->make_group("world", state->in_order());
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
  check_mesh(shard_size);
  Mesh mesh;
  mesh.world = group();
  const std::vector<int> order =
      backend() == Backend::fake ? state_->in_order() : state_->placement().by_host();
  const auto at = std::find(order.begin(), order.end(), rank()) - order.begin();
  const std::ptrdiff_t row = at / shard_size, column = at % shard_size;
  const int copies = size() / shard_size;
  const auto first = order.begin() + row * shard_size;
  const std::vector<int> neighbours(first, first + shard_size);
  std::vector<int> holders;
  for (int i = 0; i < copies; ++i) holders.push_back(order.begin()[i * shard_size + column]);
  mesh.shard = shard_size == size()
                   ? group()
                   : state_->make_group(str("shard", shard_size, "/", row), neighbours);
  mesh.replicate = copies == size()
                       ? group()
                       : state_->make_group(str("replicate", shard_size, "/", column), holders);
  std::lock_guard lock(state_->meshes_mutex);
  return state_->meshes.emplace(shard_size, std::move(mesh)).first->second;
}

void World::check_mesh(int shard_size) const {
  require<ConfigError>(shard_size >= 1 && size() % shard_size == 0, "a shard group of ", shard_size,
                       " ranks does not divide the world of ", size(), "; choose a size that does");
  if (shard_size > 1 && shard_size < size() && backend() != Backend::fake)
    require<ConfigError>(state_->placement().rows_fit_hosts(shard_size), "hybrid groups of ",
                         shard_size,
                         " neighbours (strategy.hybrid_shard_size) would cross hosts in part: ",
                         floe::join(placement(), "; "),
                         "; choose a size that divides the ranks of every host, or start as many "
                         "ranks on each");
}

at::Tensor World::read(const at::Tensor& tensor) const {
  const Activity::Waiting waiting("what the device computes and the collectives before it");
  at::Tensor host = tensor.cpu();
  for (const GroupPtr& each : state_->groups()) each->check();
  return host;
}

void World::abort() { state_->abort("this rank has given the group up"); }

std::string World::name_of(int rank) const { return state_->control->name_of(rank); }
bool World::on_several_hosts() const { return state_->control->on_several_hosts(); }

int World::ranks_on_host() const {
  return backend() == Backend::fake ? size() : state_->placement().ranks_on_host();
}

int World::ranks_on_device() const {
  return backend() == Backend::fake ? 1 : state_->placement().ranks_on_device();
}

bool World::is_first_on_host() const {
  return backend() == Backend::fake || state_->placement().is_first_on_host();
}

std::vector<std::string> World::placement() const { return state_->placement().lines(); }

std::vector<int> World::ranks_of_hosts() const {
  std::vector<int> counts;
  for (const std::vector<int>& host : state_->placement().hosts())
    counts.push_back(static_cast<int>(host.size()));
  return counts;
}

void World::publish(const std::string& key, const std::string& value) {
  state_->control->call({control::Request::Op::set, {key}, {value}}, state_->timeout);
}

std::optional<std::string> World::lookup(const std::string& key, std::chrono::milliseconds wait) {
  using Op = control::Request::Op;
  try {
    const auto reply = state_->control->call({wait.count() > 0 ? Op::get : Op::look, {key}}, wait);
    if (!reply || reply->values.empty()) return std::nullopt;
    return reply->values.front();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string World::hear(const std::string& key, const std::string& missing) {
  return state_->hear(key, missing);
}

std::string World::await(const std::string& key, const std::function<void()>& between) {
  constexpr std::chrono::milliseconds kBetween{500};
  const control::Request request{control::Request::Op::get, {key}};
  try {
    control::ControlPlane::Question question(*state_->control, request);
    for (;;) {
      if (const auto reply = question.wait(kBetween)) return reply->values.at(0);
      between();
    }
  } catch (const CommError&) {
    between();  // may know more
    throw;
  }
}

void World::forget(const std::string& key) {
  state_->control->call({control::Request::Op::remove, {key}}, state_->timeout);
}

int World::count(const std::string& what) {
  const std::lock_guard lock(state_->counted_mutex);
  return state_->counted[what]++;
}

std::optional<std::string> World::lost() const { return state_->control->lost(); }

void World::require_same(const std::string& what, const std::vector<NamedText>& values,
                         const std::string& advice) {
  if (state_->control->members().size() == 1) return;
  const auto number = state_->num_compared++;
  const std::string prefix = str("same/", number, "/"), asked = prefix + "asked",
                    found = prefix + "verdict", mine = encode(values);
  if (rank() != 0) {
    publish(str(prefix, rank()), values.empty() ? "" : digest_of(mine));
    const std::string whom = state_->verdict(asked, what);  // nobody: all is the same
    if (whom.empty()) return;
    if (whom == std::to_string(rank())) publish(prefix + "values", mine);
    const std::string verdict = state_->verdict(found, what);
    require<ConfigError>(verdict.empty(), verdict);
    return;
  }
  const auto said_by = [&](int other, const std::string& key) {
    const auto reply = state_->control->call({control::Request::Op::get, {key}}, timeout(),
                                             /*unless_failed=*/true);
    require<CommError>(reply.has_value(), name_of(other), " did not say its ", what, " in time");
    return reply->values.at(0);
  };
  const std::string digest = digest_of(mine);
  int differs = 0;  // the first rank that does
  for (int other = 1; other < size() && differs == 0; ++other) {
    const std::string key = str(prefix, other), theirs = said_by(other, key);
    forget(key);
    if (!theirs.empty() && theirs != digest) differs = other;
  }
  // What was said of the comparison before this one, all have heard by now.
  if (differs == 0 && number > 0) forget(str("same/", number - 1, "/asked"));
  publish(asked, differs == 0 ? "" : std::to_string(differs));
  if (differs == 0) return;
  const std::string difference = first_difference(
      values, decode(said_by(differs, prefix + "values")), name_of(0), name_of(differs));
  const std::string verdict = str("the ranks differ in ", what, ": ", difference, "; ", advice);
  publish(found, verdict);
  throw ConfigError(verdict);
}

void World::announce_failure(const std::string& cause, bool is_usage) noexcept {
  state_->control->announce_failure(cause, is_usage);
}

std::optional<std::string> World::first_failure(std::chrono::milliseconds wait) noexcept {
  try {
    const auto failure = state_->control->first_failure(wait);
    if (!failure) return std::nullopt;
    const int rank = backend() == Backend::fake ? this->rank() : failure->rank;
    return str(name_of(rank), ": ", failure->cause);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool World::failed_by_usage() const noexcept {
  const auto failure = state_->control->first_failure(std::chrono::milliseconds(0));
  return failure && failure->is_usage;
}

bool World::failed_rank_is_gone() const noexcept {
  const auto failure = state_->control->first_failure(std::chrono::milliseconds(0));
  return failure && failure->is_gone;
}

std::vector<std::string> World::states() { return state_->waits->states(); }
std::string World::state_of(int rank) { return state_->control->state_of(rank); }

void World::fail(const std::exception_ptr& cause) noexcept {
  if (!state_->failed_because.empty()) {
    state_->waits->end_with(
        str("this rank ends: ", state_->failed_because));  // more was said since
    return;
  }
  try {
    state_->failed_because = state_->describe_failure(cause);
    log::error(state_->failed_because);
    announce_failure(state_->failed_because, exit_of(cause) == Exit::usage);
  } catch (const std::exception& e) {
    log::error("a failure could not be told: ", e.what());
  }
}

const std::string& World::failure() const { return state_->failed_because; }

int guarded(World& world, const std::function<void()>& work) {
  try {
    work();
    return static_cast<int>(Exit::done);
  } catch (const std::exception&) {
    const auto cause = std::current_exception();
    world.fail(cause);
    // The others need not wait for a collective in which this rank is missing, nor it for them.
    world.abort();
    // Starting again would meet the first failure again, whatever this rank has met after it.
    return static_cast<int>(world.failed_by_usage() ? Exit::usage : exit_of(cause));
  }
}

}  // namespace floe::comm
