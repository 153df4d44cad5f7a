#include "floe/train/device_graph.h"

#ifdef FLOE_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#endif

#include <exception>
#include <vector>

#include "floe/core/error.h"

namespace floe::train {

#ifdef FLOE_CUDA

struct DevicePool::State {
  const decltype(at::cuda::graph_pool_handle()) id = at::cuda::graph_pool_handle();
};

struct DeviceGraph::State {
  at::cuda::CUDAGraph graph{/*keep_graph=*/true};  // until its nodes have been looked at
};

namespace {

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

}  // namespace

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

}  // namespace floe::train
