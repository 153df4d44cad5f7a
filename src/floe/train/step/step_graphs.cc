#include "floe/train/step/step_graphs.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/log.h"
#include "floe/nn/activations/checkpoint.h"
#include "floe/shard/pass/pass_record.h"

#ifdef FLOE_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#endif

namespace floe::train {
namespace {

// Device memory that recorded work allocates from. Graphs that never run beside each other, and
// leave nothing there that is needed later, can share one.
class DevicePool {
 public:
  DevicePool();
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;
  // That the device keeps for it now.
  std::int64_t bytes() const;

 private:
  friend class DeviceGraph;
  struct State;
  std::unique_ptr<State> state_;
};

// Work of a GPU, recorded once and replayed: a CUDA graph. In builds without CUDA there is none.
class DeviceGraph {
 public:
  // Whether this build can record anything.
  static bool available();

  DeviceGraph();
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  // Calls `work` and keeps what it issues to the current stream, which must not be the default one,
  // and to streams that begin after it and that it waits for. Nothing is computed. Throws Error
  // when the work waits for the device or touches host memory, which a replay would find changed.
  void record(DevicePool& pool, const std::function<void()>& work);
  // On the current stream.
  void replay();
  std::int64_t num_launches() const { return num_launches_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::int64_t num_launches_ = 0;  // kernels, copies and fills
};

#ifdef FLOE_CUDA

struct DevicePool::State {
  const decltype(at::cuda::graph_pool_handle()) id = at::cuda::graph_pool_handle();
};

struct DeviceGraph::State {
  at::cuda::CUDAGraph graph{/*keep_graph=*/true};  // until its nodes have been looked at
};

bool on_host(const void* address) {
  cudaPointerAttributes attributes{};
  C10_CUDA_CHECK(cudaPointerGetAttributes(&attributes, address));
  return attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged;
}

bool touches_host(cudaGraphNode_t node) {
  cudaMemcpy3DParms copy{};
  C10_CUDA_CHECK(cudaGraphMemcpyNodeGetParams(node, &copy));
  if (copy.kind == cudaMemcpyDeviceToDevice) return false;
  return (copy.srcPtr.ptr && on_host(copy.srcPtr.ptr)) ||
         (copy.dstPtr.ptr && on_host(copy.dstPtr.ptr));
}

// The number of nodes that do something.
std::int64_t check_nodes(cudaGraph_t graph) {
  std::size_t count = 0;
  C10_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  C10_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::int64_t launches = 0;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    C10_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    require<Error>(type != cudaGraphNodeTypeMemcpy || !touches_host(node),
                   "it copies from or to host memory, which a replay would find changed");
    launches += type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemcpy ||
                type == cudaGraphNodeTypeMemset;
  }
  return launches;
}

std::int64_t DevicePool::bytes() const {
  std::int64_t bytes = 0;
  const auto held = c10::cuda::CUDACachingAllocator::snapshot(state_->id, /*include_traces=*/false);
  for (const auto& segment : held.segments)
    if (segment.owner_private_pool_id == state_->id)
      bytes += static_cast<std::int64_t>(segment.total_size);
  return bytes;
}

bool DeviceGraph::available() { return true; }

void DeviceGraph::record(DevicePool& pool, const std::function<void()>& work) {
  // What is cached for passes that run is of no use to the pool.
  c10::cuda::CUDACachingAllocator::emptyCache();
  at::cuda::CUDAGraph& graph = state_->graph;
  // Other threads (loaders that pin memory) go on as they like.
  graph.capture_begin(pool.state_->id, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    try {
      graph.capture_end();
    } catch (const std::exception&) {
      // The first error says more.
    }
    throw;
  }
  graph.capture_end();
  num_launches_ = check_nodes(graph.raw_cuda_graph());
  graph.instantiate();
}

void DeviceGraph::replay() { state_->graph.replay(); }

#else

struct DevicePool::State {};
struct DeviceGraph::State {};

std::int64_t DevicePool::bytes() const { return 0; }

bool DeviceGraph::available() { return false; }

void DeviceGraph::record(DevicePool&, const std::function<void()>&) {
  throw ConfigError("this build has no CUDA graphs; build with FLOE_CUDA=1 ./run build");
}

void DeviceGraph::replay() {}

#endif

DevicePool::DevicePool() : state_(std::make_unique<State>()) {}
DevicePool::~DevicePool() = default;
DeviceGraph::DeviceGraph() : state_(std::make_unique<State>()) {}
DeviceGraph::~DeviceGraph() = default;

}  // namespace

PassLosses run_pass(models::LanguageModel& model,
                    const std::shared_ptr<const models::ModelInput>& input,
                    const std::function<void()>& after_forward) {
  const auto [loss, of_source] = models::training_loss(model, input);
  if (after_forward) after_forward();
  loss.backward();
  return {loss.detach(), of_source};
}

namespace {

using Key = std::vector<std::int64_t>;
constexpr std::size_t kMostSeen = 100'000;

void require_recordable(const shard::ShardOptions& sharding, const StepGraphs::Options& options) {
  require<ConfigError>(!sharding.cpu_offload && !sharding.kept_activations.in_host,
                       "strategy.cuda_graphs cannot be combined with cpu_offload or "
                       "activations.offload, which wait for the host; set one of them to false");
  require<ConfigError>(
      !options.drops_out || sharding.activation_checkpointing.empty(),
      "strategy.cuda_graphs cannot repeat what drops out in a checkpointed module; "
      "turn dropout, activation_checkpointing or cuda_graphs off");
  require<ConfigError>(!sharding.watch_operators,
                       "strategy.cuda_graphs cannot be combined with watched operators");
}

void copy_over(const nn::BatchParts& from, const nn::BatchParts& to) {
  const at::AutoGradMode grad_off(false);
  for (std::size_t i = 0; i < to.tensors.size(); ++i) {
    at::Tensor place = to.tensors[i];
    if (!place.is_same(from.tensors[i])) place.copy_(from.tensors[i], /*non_blocking=*/true);
  }
}

}  // namespace

std::unique_ptr<c10::StreamGuard> computing_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return std::make_unique<c10::StreamGuard>(
      guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
}

struct StepGraphs::State {
  struct Recorded {
    Key key;
    std::uint64_t number = 0;  // the same on all ranks
    std::shared_ptr<const models::ModelInput> input;
    nn::BatchParts parts;
    PassLosses losses;
    shard::PassRecord pass;
    DeviceGraph graph;
  };
  enum class Way : std::uint64_t { run, record, replay };

  State(models::LanguageModel& with, shard::Engine& on, const Options& chosen)
      : model(with), engine(on), options(chosen) {}

  // What this rank would do with such a pass.
  std::pair<Way, Recorded*> choose(const Key& key);
  // Real ranks only record and replay what all of them do.
  bool all_agree(Way way, const Recorded* recorded);
  void record(Key key, const std::shared_ptr<const models::ModelInput>& input);
  PassLosses replay(Recorded& recorded, const nn::BatchParts& batch);
  void drop_all();

  models::LanguageModel& model;
  shard::Engine& engine;
  const Options options;
  std::unique_ptr<DevicePool> pool;                      // as long as there are graphs
  std::list<Recorded> graphs;                            // used last first
  std::unordered_map<std::uint64_t, std::int64_t> seen;  // how often, by hash of the key
  std::unordered_set<std::uint64_t> batches;             // hashes of shapes
  bool with_places = false;  // some pass needed the places of attention with padding
  std::uint64_t layout = 0;
  std::uint64_t recordings = 0;
  Counts counts;
};

std::pair<StepGraphs::State::Way, StepGraphs::State::Recorded*> StepGraphs::State::choose(
    const Key& key) {
  if (!engine.may_repeat()) return {Way::run, nullptr};
  for (Recorded& recorded : graphs)
    if (recorded.key == key) return {Way::replay, &recorded};
  if (seen.size() >= kMostSeen) seen.clear();  // shapes that never repeat
  Hash64 hash;
  for (const std::int64_t number : key) hash.add(static_cast<std::uint64_t>(number));
  return {seen[hash.value()]++ >= options.passes_before ? Way::record : Way::run, nullptr};
}

bool StepGraphs::State::all_agree(Way way, const Recorded* recorded) {
  const comm::World& world = engine.world();
  if (world.size() == 1 || world.backend() == comm::Backend::fake) return true;
  return engine.ranks_agree(
      Hash64().add(static_cast<std::uint64_t>(way)).add(recorded ? recorded->number : 0).value());
}

void StepGraphs::State::record(Key key, const std::shared_ptr<const models::ModelInput>& input) {
  if (graphs.size() >= options.most) {
    graphs.pop_back();
    counts.dropped += 1;
  }
  if (graphs.empty()) pool = std::make_unique<DevicePool>();
  Recorded& made = graphs.emplace_front();
  try {
    std::optional<nn::NothingRandom> nothing_random;
    if (!options.drops_out) nothing_random.emplace();
    made.graph.record(*pool, [&] {
      made.pass = engine.record_pass([&] { made.losses = run_pass(model, input); });
    });
  } catch (const std::exception& e) {
    graphs.pop_front();
    throw Error(str("a step could not be recorded as a CUDA graph: ", e.what(),
                    "; set strategy.cuda_graphs: false"));
  }
  made.key = std::move(key);
  made.number = ++recordings;
  made.input = input;
  made.parts = input->parts(with_places);
  counts.recorded += 1;
  log::info("cuda graphs: recorded a step of ", input->ids.numel(), " tokens with ",
            made.graph.num_launches(), " launches; ", graphs.size(),
            graphs.size() == 1 ? " graph keeps " : " graphs share ", format_bytes(pool->bytes()));
}

PassLosses StepGraphs::State::replay(Recorded& recorded, const nn::BatchParts& batch) {
  copy_over(batch, recorded.parts);
  recorded.graph.replay();
  // Used last first; on all ranks alike, since they agreed on it.
  const auto place = std::find_if(graphs.begin(), graphs.end(),
                                  [&](const Recorded& other) { return &other == &recorded; });
  graphs.splice(graphs.begin(), graphs, place);
  // The next replay writes there again.
  return {recorded.losses.loss.clone(), recorded.losses.of_source.clone()};
}

void StepGraphs::State::drop_all() {
  counts.dropped += static_cast<std::int64_t>(graphs.size());
  graphs.clear();
  pool.reset();
  seen.clear();
}

void StepGraphs::require_device(const comm::World& world) {
  require<ConfigError>(DeviceGraph::available() && world.device().is_cuda(),
                       "strategy.cuda_graphs needs a GPU, but this run computes on the device ",
                       world.device().str(), "; set it to false");
  require<ConfigError>(
      world.backend() == comm::Backend::nccl || world.backend() == comm::Backend::fake,
      "strategy.cuda_graphs records collectives, which only the backend nccl can; set "
      "dist.backend: "
      "nccl, or cuda_graphs to false");
}

StepGraphs::StepGraphs(models::LanguageModel& model, shard::Engine& engine,
                       const Options& options) {
  require_device(engine.world());
  require_recordable(engine.options(), options);
  const c10::Device device = engine.world().device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  require<Error>(
      guard.getStream(device) != guard.getDefaultStream(device),
      "StepGraphs needs a stream that can be recorded: keep a computing_stream from before "
      "the engine is made");
  engine.keep_gradients_in_place();
  state_ = std::make_unique<State>(model, engine, options);
  state_->layout = engine.layout_number();
}

StepGraphs::~StepGraphs() = default;

bool StepGraphs::should_round(const PackedBatch& batch) {
  State& s = *state_;
  if (s.batches.size() >= kMostSeen) s.batches.clear();
  Hash64 shape;
  const auto add_all = [&](const at::Tensor& values) {
    const auto* value = values.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < values.numel(); ++i)
      shape.add(static_cast<std::uint64_t>(value[i]));
  };
  add_all(batch.sequence_offsets);
  add_all(batch.image_offsets);
  shape.add(static_cast<std::uint64_t>(batch.num_labels()));
  return s.batches.insert(shape.value()).second;
}

PassLosses StepGraphs::run(const std::shared_ptr<const models::ModelInput>& input,
                           const std::function<void()>& after_forward) {
  State& s = *state_;
  using Way = State::Way;
  if (const std::uint64_t layout = s.engine.layout_number(); layout != s.layout) {
    s.drop_all();
    s.layout = layout;
  }
  const nn::BatchParts parts = input->parts(s.with_places);
  Key key = s.engine.pass_key();
  key.push_back(s.model.module().is_training());
  key.insert(key.end(), parts.numbers.begin(), parts.numbers.end());
  auto [way, recorded] = s.choose(key);
  if (!s.all_agree(way, recorded)) way = Way::run;
  if (way == Way::run) {
    s.counts.ran += 1;
    const PassLosses losses = run_pass(s.model, input, after_forward);
    // What the pass itself has made is part of the shape from now on.
    s.with_places = s.with_places || input->parts().numbers.size() != parts.numbers.size();
    return losses;
  }
  // Recording a pass leaves the engine as running it does, but the device has not moved yet.
  if (way == Way::record) {
    s.record(std::move(key), input);
    recorded = &s.graphs.front();
  }
  const PassLosses losses = s.replay(*recorded, parts);
  if (way == Way::replay) {
    s.engine.repeat_pass(recorded->pass);
    s.counts.replayed += 1;
  }
  if (after_forward) after_forward();
  return losses;
}

StepGraphs::Counts StepGraphs::counts() const {
  Counts counts = state_->counts;
  counts.kept = state_->graphs.size();
  if (state_->pool) counts.pool_bytes = state_->pool->bytes();
  return counts;
}

std::string StepGraphs::summary() const {
  const Counts all = counts();
  return str("cuda graphs: ", all.replayed, " passes were replayed, ", all.recorded,
             " recorded and ", all.ran, " run; ", all.kept, " graphs share ",
             format_bytes(all.pool_bytes));
}

}  // namespace floe::train
