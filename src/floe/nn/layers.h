// The plain layers. Names and shapes of parameters are those of torch.nn.
#pragma once

#include "floe/nn/module.h"

namespace floe::nn {

// y = x Wᵀ + b
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias = true);
  // With given initial values instead of torch's own.
  Linear(std::int64_t in, std::int64_t out, bool bias, Init weight_init);
  at::Tensor forward(const at::Tensor& x);
  // From now on this layer's weight is that parameter of another module, under both names.
  void tie_weight(const at::Tensor& other) { weight = tie("weight", other); }

  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out] or undefined
};

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
