// The plain layers. Names and shapes of parameters are those of torch.nn.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "floe/nn/fused.h"
#include "floe/nn/module.h"

namespace floe::nn {

struct AdaptedWeight;  // products/adapted.h

// Modules of one kind, named "0", "1", "2", ...

template <class M>
class List : public Module {
 public:
  template <class... Args>
  void add(Args&&... args) {
    items_.push_back(child<M>(std::to_string(items_.size()), std::forward<Args>(args)...));
  }
  std::size_t size() const { return items_.size(); }
  const Ptr<M>& operator[](std::size_t i) const { return items_[i]; }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<Ptr<M>> items_;
};

// A low-rank adapter beside a linear layer: y + scale · B A dropout(x).
struct LoraOptions {
  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  bool rank_stabilised = false;  // scale = alpha / sqrt(rank) instead of alpha / rank

  double scale() const;
};

// y = x Wᵀ + b
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias = true);
  // With given initial values instead of torch's own.
  Linear(std::int64_t in, std::int64_t out, bool bias, Init weight_init);
  at::Tensor forward(const at::Tensor& x);
  bool multiplies(const std::string& parameter) const override { return parameter == "weight"; }
  // From now on this layer's weight is that parameter of another module, under both names.
  void tie_weight(const at::Tensor& other) { weight = tie("weight", other); }

  // Adds the parameters lora_A.weight [rank, in] and lora_B.weight [out, rank], as PEFT names and
  // begins them: A random, B zero, so that the layer first gives what it gave before.
  void adapt(const LoraOptions& options);
  const std::optional<LoraOptions>& lora() const { return lora_; }
  // What this layer is in an adapted product of x (see Note [Adapted products]); none where one
  // does not take it: a base that trains, dropout, autocast, a unit of its own.
  std::optional<AdaptedWeight> as_adapted(const at::Tensor& x) const;
  // Whether calling this layer is x Wᵀ and nothing else: no bias, no adapter, no boundary.
  bool is_bare() const { return !bias.defined() && !lora_ && !boundary && !checkpointed; }
  // Puts the adapter's product into the weight and sets B to zero. The parameters must be whole.
  void merge_lora();

  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out] or undefined

 private:
  std::optional<LoraOptions> lora_;
  Ptr<Linear> lora_a_, lora_b_;
};

// Layers that read the same x, each one's result.
std::vector<at::Tensor> project(const at::Tensor& x, const std::vector<Ptr<Linear>>& layers);
// down(gelu(up(x)))
at::Tensor gelu_mlp(const at::Tensor& x, const Ptr<Linear>& up, const Ptr<Linear>& down);
// layer(silu(gate) · up)
at::Tensor gated_silu_linear(const at::Tensor& gate, const at::Tensor& up,
                             const Ptr<Linear>& layer);

class Embedding : public Module {
 public:
  Embedding(std::int64_t rows, std::int64_t dim, Init init = Init::normal(1));
  at::Tensor forward(const at::Tensor& ids);
  bool weights_in_backward() const override { return false; }

  at::Tensor weight;  // [rows, dim]
};

class LayerNorm : public Module {
 public:
  explicit LayerNorm(std::int64_t dim, double eps = 1e-5);
  at::Tensor forward(const at::Tensor& x);

  NormWeights weights() const { return {weight, bias, eps_}; }
  // Whether calling this layer is the norm and nothing else.
  bool is_bare() const { return !boundary && !checkpointed; }

  at::Tensor weight, bias;  // [dim]

 private:
  double eps_;
};

class Dropout : public Module {
 public:
  explicit Dropout(double p) : p_(p) {}
  at::Tensor forward(const at::Tensor& x);

 private:
  double p_;
};

}  // namespace floe::nn
