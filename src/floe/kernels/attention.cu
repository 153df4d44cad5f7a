#include <type_traits>

#include "floe/kernels/attention.cuh"

namespace floe::kernels {
namespace {

template <class Body>
void with_dim(std::int64_t dim, const Body& body) {
  switch (dim) {
    case 64: return body(std::integral_constant<int, 64>{});
    case 80: return body(std::integral_constant<int, 80>{});
    case 96: return body(std::integral_constant<int, 96>{});
    case 128: return body(std::integral_constant<int, 128>{});
  }
}

template <class Body>
void with_type(Type type, const Body& body) {
  if (type == Type::bf16) body(__nv_bfloat16{});
  if (type == Type::f16) body(__half{});
}

template <class Kernel, class... Arguments>
void start(Kernel kernel, const AttentionShape& shape, int longest, int heads, std::size_t memory,
           cudaStream_t stream, const Arguments&... arguments) {
  const auto tiles = static_cast<unsigned>((longest + kTile - 1) / kTile);
  if (tiles == 0 || shape.spans == 0) return;
  const dim3 blocks(tiles, static_cast<unsigned>(heads), static_cast<unsigned>(shape.spans));
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
  kernel<<<blocks, kThreads, memory, stream>>>(shape, arguments...);
}

}  // namespace

bool attention_runs(std::int64_t dim, int device) {
  bool runs = false;
  with_dim(dim, [&](auto known) {
    int memory = 0;
    const auto asked =
        cudaDeviceGetAttribute(&memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    runs = asked == cudaSuccess &&
           memory >= static_cast<int>(sizeof(BackwardMemory<__half, known, true>));
  });
  return runs;
}

void launch_attention(Type type, const AttentionShape& shape, const HeadsOf& q, const HeadsOf& k,
                      const HeadsOf& v, const HeadsOf& mixed, float* logsumexp,
                      cudaStream_t stream) {
  with_type(type, [&](auto zero) {
    with_dim(shape.dim, [&](auto dim) {
      using T = decltype(zero);
      start(attention_kernel<T, dim>, shape, shape.queries.longest, shape.heads,
            sizeof(ForwardMemory<T, dim>), stream, q, k, v, mixed, logsumexp);
    });
  });
}

void launch_attention_backward(Type type, const AttentionShape& shape, const HeadsOf& q,
                               const HeadsOf& k, const HeadsOf& v, const HeadsOf& mixed,
                               const HeadsOf& mixed_grad, const float* logsumexp, float* delta,
                               const HeadsOf& q_grad, const HeadsOf& k_grad, const HeadsOf& v_grad,
                               cudaStream_t stream) {
  with_type(type, [&](auto zero) {
    with_dim(shape.dim, [&](auto dim) {
      using T = decltype(zero);
      // The queries' first: they leave delta for the keys'.
      start(attention_backward_kernel<T, dim, false>, shape, shape.queries.longest, shape.heads,
            sizeof(BackwardMemory<T, dim, false>), stream, q, k, v, mixed, mixed_grad, logsumexp,
            delta, q_grad, HeadsOf{});
      start(attention_backward_kernel<T, dim, true>, shape, shape.keys.longest,
            shape.heads / shape.queries_per_key, sizeof(BackwardMemory<T, dim, true>), stream, q, k,
            v, mixed, mixed_grad, logsumexp, delta, k_grad, v_grad);
    });
  });
}

}  // namespace floe::kernels
