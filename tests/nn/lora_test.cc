// Low-rank adapters of a linear layer: the formula, its gradients, merging, dropout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "floe/nn/layers.h"

namespace floe::nn::lora_test {
namespace {

struct Host : Module {
  Host(bool bias, const LoraOptions& options) {
    linear = child<Linear>("linear", 6, 5, bias);
    linear->adapt(options);
    materialize(*this, 3);
    for (auto& parameter : nn::named_parameters(*this)) by_name[parameter.name] = parameter.tensor;
    const at::NoGradGuard no_grad;
    at::manual_seed(5);
    by_name.at("linear.lora_B.weight").normal_();
  }
  at::Tensor formula(const at::Tensor& x) const {
    const at::Tensor low = at::linear(x, by_name.at("linear.lora_A.weight"));
    const at::Tensor bias =
        by_name.contains("linear.bias") ? by_name.at("linear.bias") : at::Tensor();
    return at::linear(x, by_name.at("linear.weight"), bias) +
           at::linear(low, by_name.at("linear.lora_B.weight")) * linear->lora()->scale();
  }
  std::map<std::string, at::Tensor> gradients() {
    std::map<std::string, at::Tensor> result;
    for (auto& [name, tensor] : by_name)
      if (tensor.grad().defined()) {
        result[name] = tensor.grad().clone();
        tensor.mutable_grad().reset();
      }
    return result;
  }
  Ptr<Linear> linear;
  std::map<std::string, at::Tensor> by_name;
};

TEST(Lora, NamesAndShapesOfPeft) {
  const Host host(true, {.rank = 3});
  EXPECT_EQ(host.by_name.size(), 4U);
  EXPECT_EQ(host.by_name.at("linear.lora_A.weight").sizes(), (at::IntArrayRef{3, 6}));
  EXPECT_EQ(host.by_name.at("linear.lora_B.weight").sizes(), (at::IntArrayRef{5, 3}));
}

TEST(Lora, BeginsAsTheLayerWas) {
  Linear plain(6, 5), adapted(6, 5);
  adapted.adapt({.rank = 4});
  materialize(plain, 3);
  materialize(adapted, 3);
  const at::Tensor x = at::randn({7, 6});
  EXPECT_TRUE(plain.forward(x).equal(adapted.forward(x)));
}

TEST(Lora, ForwardAndBackward) {
  for (const bool bias : {true, false}) {
    Host host(bias, {.rank = 3, .alpha = 5});
    const at::Tensor x = at::randn({7, 6}), slope = at::randn({7, 5});
    const at::Tensor expected = host.formula(x);
    (expected * slope).sum().backward();
    const auto theirs = host.gradients();
    const at::Tensor ours = host.linear(x);
    EXPECT_LE((ours - expected).abs().max().item<double>(), 1e-6);
    (ours * slope).sum().backward();
    const auto gradients = host.gradients();
    ASSERT_EQ(gradients.size(), bias ? 4U : 3U);
    for (const auto& [name, gradient] : theirs)
      EXPECT_LE((gradients.at(name) - gradient).abs().max().item<double>(), 1e-5) << name;
  }
}

TEST(Lora, Scales) {
  EXPECT_DOUBLE_EQ((LoraOptions{.rank = 4, .alpha = 6}.scale()), 1.5);
  EXPECT_DOUBLE_EQ((LoraOptions{.rank = 4, .alpha = 6, .rank_stabilised = true}.scale()), 3);
}

TEST(Lora, MergedEqualsApart) {
  Host host(true, {.rank = 3, .alpha = 5, .rank_stabilised = true});
  const at::Tensor x = at::randn({7, 6});
  const at::Tensor apart = host.linear(x),
                   before = host.by_name.at("linear.weight").detach().clone();
  host.linear->merge_lora();
  EXPECT_FALSE(host.by_name.at("linear.weight").equal(before));
  EXPECT_LE((host.linear(x) - apart).abs().max().item<double>(), 2e-6);
  // Once is enough.
  const at::Tensor merged = host.by_name.at("linear.weight").detach().clone();
  host.linear->merge_lora();
  EXPECT_TRUE(host.by_name.at("linear.weight").equal(merged));
}

TEST(Lora, DropoutOnlyInTraining) {
  Host host(true, {.rank = 3, .dropout = 0.5});
  const at::Tensor x = at::randn({64, 6});
  host.eval();
  EXPECT_LE((host.linear(x) - host.formula(x)).abs().max().item<double>(), 1e-6);
  host.train();
  const at::Tensor base =
      at::linear(x, host.by_name.at("linear.weight"), host.by_name.at("linear.bias"));
  EXPECT_GT((host.linear(x) - host.formula(x)).abs().max().item<double>(), 1e-2);
  // The layer itself sees all of its input: dropping everything leaves it alone.
  Host closed(true, {.rank = 3, .dropout = 0.999999});
  closed.train();
  const at::Tensor alone =
      at::linear(x, closed.by_name.at("linear.weight"), closed.by_name.at("linear.bias"));
  EXPECT_TRUE(closed.linear(x).equal(alone));
  // The mean over many draws is the formula.
  at::Tensor mean = at::zeros_like(base);
  const at::NoGradGuard no_grad;
  for (int i = 0; i < 4000; ++i) mean += host.linear(x) / 4000;
  EXPECT_LE((mean - host.formula(x)).abs().mean().item<double>(),
            0.05 * (host.formula(x) - base).abs().mean().item<double>());
}

TEST(Lora, OnlyTheAdapterTrains) {
  Host host(true, {.rank = 3});
  set_trainable(host, {"*.lora_A.weight", "*.lora_B.weight"});
  host.linear(at::randn({7, 6})).sum().backward();
  const auto gradients = host.gradients();
  EXPECT_EQ(gradients.size(), 2U);
  EXPECT_TRUE(gradients.contains("linear.lora_A.weight"));
}

}  // namespace
}  // namespace floe::nn::lora_test
