// The two ends of a language model that have a row for each token: the embedding and the output
// head.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "floe/nn/cross_entropy.h"
#include "floe/nn/module.h"

namespace floe::models {

// The embedding of tokens, with rows of their own for the tokens that train.
//
// Note [Trained rows]
// OpenFlamingo trains the embeddings of `<image>` and `<|endofchunk|>` only: the whole table
// requires a gradient, and all but two rows of it are set to zero. Here the table is frozen storage
// and the rows are a parameter `rows` beside it, so that gradient, optimizer state and traffic
// exist for the rows alone. The table's own values for these tokens are never used. A tied head
// uses the same rows. Files in other layouts have one table; weights/weights.h goes between the
// two.
class TokenEmbedding : public nn::Module {
 public:
  TokenEmbedding(std::int64_t vocab, std::int64_t dim, double deviation,
                 const std::vector<std::int64_t>& trained_rows = {});
  at::Tensor forward(const at::Tensor& ids);  // [N] → [N, dim]
  bool weights_in_backward() const override { return false; }

  const std::vector<std::int64_t>& trained_rows() const { return trained_rows_; }
  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& rows() const { return rows_; }

 private:
  std::vector<std::int64_t> trained_rows_;
  at::Tensor weight_;  // [vocab, dim]
  at::Tensor rows_;    // [R, dim] or undefined
};

class OutputHead : public nn::Module {
 public:
  OutputHead(std::int64_t vocab, std::int64_t dim, double deviation, double scale = 1);
  // The embedding's table and rows are this head's, under both names.
  void tie(const TokenEmbedding& embedding);
  // A bias [vocab] that another module registered is this head's as well, under both names.
  void tie_bias(const at::Tensor& bias);
  bool weights_in_backward() const override { return false; }  // see Note [Loss without logits]

  // [L, dim] → [L, vocab]
  at::Tensor logits(const at::Tensor& hidden);
  // See nn::cross_entropy.
  std::pair<at::Tensor, at::Tensor> loss(const at::Tensor& hidden, const at::Tensor& targets,
                                         const at::Tensor& weights, double z_loss);

 private:
  nn::OutputWeights output(const at::Tensor& like);

  double scale_;
  std::vector<std::int64_t> trained_rows_;
  at::Tensor weight_, rows_, bias_;
  // `trained_rows_` where the model computes: made once, a step reads no host memory.
  at::Tensor row_ids_;
};

}  // namespace floe::models
