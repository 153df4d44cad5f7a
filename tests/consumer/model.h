// A model of one's own in plain torch::nn. Nothing here is floe's: `Block` may be BlockImpl itself
// or anything derived from it.
#pragma once

#include <ATen/ops/gelu.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <vector>

inline constexpr int64_t kInputs = 16, kWidth = 32, kOutputs = 8;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(torch::nn::LayerNormOptions({kWidth})),
        up(kWidth, 2 * kWidth),
        down(2 * kWidth, kWidth) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(norm(x)))); }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};

template <class Block>
struct NetImpl : torch::nn::Module {
  NetImpl() : embed(kInputs, kWidth), head(kWidth, kOutputs) {
    register_module("embed", embed);
    torch::nn::ModuleList list;
    register_module("blocks", list);
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(std::make_shared<Block>());
      list->push_back(blocks.back());
    }
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = embed(x);
    for (const auto& block : blocks) y = block->forward(y);
    return head(y);
  }

  torch::nn::Linear embed, head;
  std::vector<std::shared_ptr<Block>> blocks;
};
