// The launchers behind the kernels' tensors: plain pointers, one per family of kernels. Pointers
// are aligned to 16 bytes unless it says otherwise; all return at once, the work is on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace floe::kernels {

enum class Type { f32, f16, bf16 };

// `numel` values.
void launch_quick_gelu(Type type, const void* x, void* y, std::int64_t numel, cudaStream_t stream);
// out = silu(gate) · up
void launch_gated_silu(Type type, const void* gate, const void* up, void* out, std::int64_t numel,
                       cudaStream_t stream);
void launch_gated_silu_backward(Type type, const void* grad, const void* gate, const void* up,
                                void* gate_grad, void* up_grad, std::int64_t numel,
                                cudaStream_t stream);
// out = tanh(gate) · gelu(u); a null gate counts as 1.
void launch_gated_gelu(Type type, const void* u, const void* gate, void* out, std::int64_t numel,
                       cudaStream_t stream);
// input_grad = grad · gelu'(u)
void launch_gelu_backward(Type type, const void* grad, const void* u, void* input_grad,
                          std::int64_t numel, cudaStream_t stream);
// Of G = ∂/∂(tanh(gate) · gelu(u)) · 1: input_grad = tanh(gate) · G · gelu'(u), out as above, and
// `partial_sums` [kPartials] whose sum is ⟨G, gelu(u)⟩.
constexpr int kPartials = 8448;  // many blocks in turn on each of 132 multiprocessors
void launch_gated_gelu_backward(Type type, const void* grad, const void* u, const void* gate,
                                void* input_grad, void* out, float* partial_sums,
                                std::int64_t numel, cudaStream_t stream);

constexpr int kMostNormPacks = 2048;  // of 16 bytes, in a row
struct NormShape {
  std::int64_t rows = 0, dim = 0;  // a row's bytes are a multiple of 16
  float eps = 0;
  bool centred = true;  // false: RMS norm, which leaves the mean where it is
};
// sum = x + added (either may be null: nothing is added, nothing is written), out = norm(sum) ·
// weight + bias. `sum` is written with `sum_bias` added to it. Null mean and rstd are not wanted,
// nor are null `codes` [rows, dim] (e4m3) and `code_scales` [rows] of `out`, nor a null `kept`
// [rows, dim] (e4m3) of norm(sum).
void launch_layer_norm(Type type, const NormShape& shape, const void* x, const void* added,
                       const void* weight, const void* bias, const void* sum_bias, void* sum,
                       void* out, float* mean, float* rstd, void* codes, float* code_scales,
                       void* kept, cudaStream_t stream);
// input_grad = the norm's gradient for its input, plus `added` unless that is null. With `kept`, x
// are the bytes of that name, and no mean is needed.
void launch_layer_norm_backward(Type type, const NormShape& shape, const void* grad, const void* x,
                                const float* mean, const float* rstd, const void* weight,
                                const void* added, void* input_grad, bool kept,
                                cudaStream_t stream);
// The gradients of its weight and, unless null, bias: first of strips of the rows, `partials`
// [strips, 2, dim], then their sum.
void launch_norm_weight_grads(Type type, const NormShape& shape, const void* grad, const void* x,
                              const float* mean, const float* rstd, float* partials, int strips,
                              void* weight_grad, void* bias_grad, cudaStream_t stream);

// x and, where it has heads, `also`: [tokens, heads, ...] with these strides, no alignment asked
// for; cos and sin [tokens, dim].
struct RotaryShape {
  struct Heads {
    std::int64_t heads = 0, token_stride = 0, head_stride = 0;
  };
  std::int64_t tokens = 0, dim = 0;
  Heads first, second;
};
void launch_rotary(Type type, const RotaryShape& shape, void* x, void* also, const void* cos,
                   const void* sin, bool backward, cudaStream_t stream);

// One head's rows inside of a packed tensor: the values of a row lie next to each other, rows and
// heads have these strides, in values; all a multiple of 16 bytes.
struct HeadsOf {
  void* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
};
// Spans of tokens that lie one after the other: [count + 1], where they begin, and the longest one.
struct SpansOf {
  const int* offsets = nullptr;
  int longest = 0;
};
struct AttentionShape {
  SpansOf queries, keys;
  int spans = 0;
  bool causal = false;            // a query sees the keys up to its own place in the span, else all
  const float* slopes = nullptr;  // [heads], alibi's; null: none
  std::int64_t tokens = 0;        // of queries
  int heads = 0, queries_per_key = 1,
      dim = 0;  // queries_per_key heads share one of keys and values
  float scale = 1;
};
// Whether there are kernels, of f16 and bf16, for this head dimension, and this device
// has the memory.
bool attention_runs(std::int64_t dim, int device);
// mixed = softmax(scale · q · kᵀ - slope · distance) · v of each span, zeros where it has no keys.
// `logsumexp` [heads, tokens] is for the backward; null: not wanted.
void launch_attention(Type type, const AttentionShape& shape, const HeadsOf& q, const HeadsOf& k,
                      const HeadsOf& v, const HeadsOf& mixed, float* logsumexp,
                      cudaStream_t stream);
// `delta` [heads, tokens] is working memory.
void launch_attention_backward(Type type, const AttentionShape& shape, const HeadsOf& q,
                               const HeadsOf& k, const HeadsOf& v, const HeadsOf& mixed,
                               const HeadsOf& mixed_grad, const float* logsumexp, float* delta,
                               const HeadsOf& q_grad, const HeadsOf& k_grad, const HeadsOf& v_grad,
                               cudaStream_t stream);

struct LossShape {
  std::int64_t rows = 0, vocabulary = 0;
  float scale = 1, z_loss = 0;
  bool with_gradient = false;
};
// logits [rows, vocabulary] become the gradient where one is asked for.
void launch_cross_entropy(Type type, const LossShape& shape, void* logits,
                          const std::int64_t* targets, const float* weights, float* losses,
                          float* weighted, cudaStream_t stream);

}  // namespace floe::kernels
