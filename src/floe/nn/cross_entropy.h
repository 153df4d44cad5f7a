// The loss of a language model without its logits.
//
// Note [Loss without logits]
// Logits in fp32 are the largest tensor of a training step. Here they exist only for labelled
// tokens and only a chunk at a time: the forward of a chunk computes its logits, its loss and,
// while they are there, the gradient of its hidden states (and of the weights that train). Backward
// only scales what was kept, [L, D] instead of [N, V], and does not need the weight any more.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace floe::nn {

// The output layer: logits = (hidden weightᵀ + bias) · scale, with some rows of the weight kept
// apart.
struct OutputWeights {
  at::Tensor weight;   // [V, D]
  at::Tensor rows;     // [R, D] in place of the weight's rows `row_ids`; undefined: none
  at::Tensor row_ids;  // [R] int64
  double scale = 1;
  at::Tensor bias;  // [V]; undefined: none. Not together with rows.
};

// [L, D] → [L, V]
at::Tensor logits(const at::Tensor& hidden, const OutputWeights& output);

// Cross entropy of predicting `targets` [L] from `hidden` [L, D]. Gives the sum over tokens of
// weights [L] (fp32) times (loss + z_loss · log²Z), and each token's loss without weight or z term
// [L] (fp32, no gradient).
std::pair<at::Tensor, at::Tensor> cross_entropy(const at::Tensor& hidden,
                                                const OutputWeights& output,
                                                const at::Tensor& targets,
                                                const at::Tensor& weights, double z_loss = 0);

}  // namespace floe::nn
