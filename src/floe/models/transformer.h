// A plain pre-norm decoder with learned positions: the model of the demo, the engine's tests and
// benchmarks, and of plans for models that exist only as sizes.
#pragma once

#include "floe/nn/layers.h"

namespace floe::models {

struct TransformerSize {
  std::int64_t vocab = 256, dim = 64, layers = 4, heads = 4, context = 64, mlp_ratio = 4;
  double dropout = 0;
  bool tied = false;  // the head shares the embedding's weight
  // A bottleneck of this width after each layer's MLP (0: none): what adapters train while the rest
  // is frozen. It begins as the identity.
  std::int64_t adapter = 0;
};

// Its parts; decoder.h has a DecoderLayer of its own.
namespace plain {

class Attention : public nn::Module {
 public:
  explicit Attention(const TransformerSize& size);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::int64_t heads_;
  nn::Ptr<nn::Linear> qkv_, out_;
};

class Adapter : public nn::Module {
 public:
  Adapter(std::int64_t dim, std::int64_t width);
  at::Tensor forward(const at::Tensor& x);

 private:
  nn::Ptr<nn::Linear> down_, up_;
};

class DecoderLayer : public nn::Module {
 public:
  explicit DecoderLayer(const TransformerSize& size);
  at::Tensor forward(const at::Tensor& x);

 private:
  nn::Ptr<nn::LayerNorm> norm1_, norm2_;
  nn::Ptr<Attention> attention_;
  nn::Ptr<nn::Linear> up_, down_;
  nn::Ptr<Adapter> adapter_;
  nn::Ptr<nn::Dropout> dropout_;
};

}  // namespace plain

class Transformer : public nn::Module {
 public:
  explicit Transformer(const TransformerSize& size);
  // ids [B, T] → logits [B, T, vocab]
  at::Tensor forward(const at::Tensor& ids);
  const TransformerSize& size() const { return size_; }

 private:
  TransformerSize size_;
  nn::Ptr<nn::Embedding> embed_, positions_;
  nn::Ptr<nn::List<plain::DecoderLayer>> layers_;
  nn::Ptr<nn::LayerNorm> norm_;
  nn::Ptr<nn::Linear> head_;
};

// Mean cross entropy of predicting ids[:, 1:] from logits[:, :-1].
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& ids);

}  // namespace floe::models
