// A step that runs on the meta device, where tensors have shapes and no values, to learn what it
// would do on a GPU or on the CPU.
//
// Note [Rehearsal]
// While a Rehearsal listens on this thread, tensors of the meta device count as tensors of a GPU
// that has floe's kernels: they are taken wherever a GPU's would be, each function allocates what
// it would allocate there, and instead of computing says what it would do. So models, engine and
// autograd run the very code that a training step runs (floe/plan/rehearsal has the device).
// A rehearsal that stands for the CPU has none of these kernels: plain operators run, and code that
// asks for the CPU asks `acts_as_cpu`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "floe/kernels/attention.h"
#include "floe/kernels/eight_bit/eight_bit.h"
#include "floe/kernels/eight_bit/fp8_product.h"
#include "floe/kernels/kernels.h"

namespace floe::kernels {

// Attention between spans of queries and keys: [tokens, heads, dim].
struct AttentionWork {
  std::int64_t queries = 0, keys = 0;  // tokens
  std::int64_t heads = 0, dim = 0, spans = 0;
  std::int64_t longest_key = 0;
  std::int64_t bytes = 0;  // read and written
  bool causal = false, backward = false;
  bool flash = false;  // torch's kernel, else floe's own
};

class Rehearsal {
 public:
  virtual ~Rehearsal() = default;
  // One kernel that reads and writes so many bytes.
  virtual void pass(const char* what, std::int64_t bytes) = 0;
  // [m, k] · [k, n] of 8-bit codes.
  virtual void coded_product(std::int64_t m, std::int64_t n, std::int64_t k) = 0;
  virtual void attention(const AttentionWork& work) = 0;
  // Whether the meta device stands for the CPU, not for a GPU.
  virtual bool of_cpu() const { return false; }

  // Who listens on this thread; null: nobody.
  static Rehearsal* current();
};

// While it lives, `rehearsal` listens on this thread.
class RehearsalScope {
 public:
  explicit RehearsalScope(Rehearsal& rehearsal);
  ~RehearsalScope();
  RehearsalScope(const RehearsalScope&) = delete;
  RehearsalScope& operator=(const RehearsalScope&) = delete;

 private:
  Rehearsal* before_;
};

// While it lives, what this thread allocates on the meta device stands for host memory.
class RehearsedHostMemory {
 public:
  RehearsedHostMemory();
  ~RehearsedHostMemory();
  RehearsedHostMemory(const RehearsedHostMemory&) = delete;
  RehearsedHostMemory& operator=(const RehearsedHostMemory&) = delete;
  static bool on();

 private:
  bool before_;
};

inline bool is_rehearsed(const at::Tensor& tensor) {
  return tensor.is_meta() && Rehearsal::current();
}
inline bool is_rehearsed(at::Device device) { return device.is_meta() && Rehearsal::current(); }

// Whether it is rehearsed as a GPU's.
template <class TensorOrDevice>
bool is_rehearsed_gpu(const TensorOrDevice& what) {
  return is_rehearsed(what) && !Rehearsal::current()->of_cpu();
}
// Whether it is the CPU's, or rehearsed as such.
template <class TensorOrDevice>
bool acts_as_cpu(const TensorOrDevice& what) {
  return what.is_cpu() || (is_rehearsed(what) && Rehearsal::current()->of_cpu());
}

// What the functions of the same name outside do with such tensors.
namespace rehearsed {

at::Tensor quick_gelu(const at::Tensor& x);
at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& grad,
                                                      const at::Tensor& gate, const at::Tensor& up);
at::Tensor gelu_backward(const at::Tensor& grad, const at::Tensor& u);
at::Tensor gated_gelu(const at::Tensor& u, const at::Tensor& gate);
GatedGeluGrad gated_gelu_backward_(const at::Tensor& grad, const at::Tensor& u);
Normed layer_norm(const at::Tensor& x, const at::Tensor& added, const NormOptions& options);
NormGrads layer_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& added, bool centred, bool want_input,
                              bool want_weights);
void rotate_(const at::Tensor& x, const at::Tensor& also, const at::Tensor& cos);
void cross_entropy_(const at::Tensor& logits, bool with_gradient);
Attended attention(const Qkv& qkv, const AttentionRule& rule);
void attention_backward(const Qkv& qkv, const AttentionRule& rule);
void from_eight_bit(const at::Tensor& slices, const at::Tensor& out);
CodedRows coded_rows(const at::Tensor& values, at::ScalarType dtype);
at::Tensor product(const CodedRows& rows, const at::Tensor& codes, at::ScalarType dtype);
void separate(const at::Tensor& slices, const at::Tensor& codes);
void transpose_bytes(const at::Tensor& matrix);

}  // namespace rehearsed
}  // namespace floe::kernels
