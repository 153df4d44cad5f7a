// Low-rank adapters of a linear layer: the formula, its gradients, merging, dropout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "floe/nn/layers.h"
#include "floe/nn/products/adapted.h"

namespace floe::nn::lora_test {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

Tensors take_gradients(Tensors& of) {
  Tensors result;
  for (auto& [name, tensor] : of)
    if (tensor.grad().defined()) {
      result[name] = tensor.grad().clone();
      tensor.mutable_grad().reset();
    }
  return result;
}

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
  Tensors gradients() { return take_gradients(by_name); }
  Ptr<Linear> linear;
  Tensors by_name;
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

// ---- several layers of one input, see Note [Adapted products] ----

// Three layers as attention has them, of which some have adapters, and one behind a gate.
struct Layers : Module {
  Layers(const std::vector<std::int64_t>& ranks, bool bias, at::ScalarType dtype) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto out = static_cast<std::int64_t>(8 + 4 * i);
      parts.push_back(child<Linear>(std::to_string(i), 16, out, bias));
      if (ranks[i] > 0) parts.back()->adapt({.rank = ranks[i], .alpha = 3});
    }
    behind = child<Linear>("behind", 8, 12, bias);
    behind->adapt({.rank = 2, .alpha = 6, .rank_stabilised = true});
    materialize(*this, 3);
    at::manual_seed(5);
    const at::NoGradGuard no_grad;
    for (auto& p : nn::named_parameters(*this)) {
      p.tensor.set_data(p.tensor.normal_().to(dtype));
      by_name[p.name] = p.tensor;
    }
    for (auto& [name, tensor] : by_name)
      tensor.requires_grad_(name.find("lora") != std::string::npos);
  }
  at::Tensor formula(const Ptr<Linear>& layer, const std::string& name, const at::Tensor& x) const {
    const at::Tensor y = at::linear(x, layer->weight, layer->bias);
    if (!layer->lora()) return y;
    return y + at::linear(at::linear(x, by_name.at(name + ".lora_A.weight")),
                          by_name.at(name + ".lora_B.weight")) *
                   layer->lora()->scale();
  }
  Tensors gradients() { return take_gradients(by_name); }
  std::vector<Ptr<Linear>> parts;
  Ptr<Linear> behind;
  Tensors by_name;
};

// Values and gradients, all of the same size, against the operators one by one.
void expect_as_formula(Layers& layers, bool x_trains, bool bias_trains, double bound) {
  for (auto& [name, tensor] : layers.by_name)
    if (name.ends_with("bias")) tensor.requires_grad_(bias_trains);
  const auto dtype = layers.behind->weight.scalar_type();
  at::manual_seed(7);
  at::Tensor x = at::randn({2, 5, 16}, dtype).requires_grad_(x_trains);
  const auto gradients = [&](const std::vector<at::Tensor>& outputs) {
    at::manual_seed(8);
    at::Tensor sum = at::zeros({}, dtype);
    for (const at::Tensor& y : outputs) sum = sum + (y * at::randn(y.sizes(), dtype)).sum();
    sum.backward();
    auto result = layers.gradients();
    if (x_trains) {
      result["x"] = x.grad().clone();
      x.mutable_grad().reset();
    }
    return result;
  };
  std::vector<at::Tensor> ours = project(x, layers.parts), theirs;
  ours.push_back(gated_silu_linear(ours[0], ours[0] + 1, layers.behind));
  for (std::size_t i = 0; i < layers.parts.size(); ++i)
    theirs.push_back(layers.formula(layers.parts[i], std::to_string(i), x));
  theirs.push_back(layers.formula(layers.behind, "behind", at::silu(theirs[0]) * (theirs[0] + 1)));
  const auto expect_close = [&](const at::Tensor& got, const at::Tensor& want,
                                const std::string& what) {
    EXPECT_EQ(got.sizes(), want.sizes()) << what;
    EXPECT_LE((got - want).abs().max().item<double>(), bound * want.abs().max().item<double>())
        << what;
  };
  for (std::size_t i = 0; i < ours.size(); ++i) expect_close(ours[i], theirs[i], std::to_string(i));
  const auto got = gradients(ours), want = gradients(theirs);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, gradient] : want) expect_close(got.at(name), gradient, name);
}

TEST(AdaptedProducts, EqualTheOperatorsOneByOne) {
  for (const std::vector<std::int64_t>& ranks :
       {std::vector<std::int64_t>{3}, {3, 2, 5}, {4, 0, 4}, {0, 3}, {0, 0, 1}})
    for (const bool bias : {true, false})
      for (const bool x_trains : {true, false}) {
        Layers layers(ranks, bias, at::kDouble);
        expect_as_formula(layers, x_trains, /*bias_trains=*/false, 1e-12);
        expect_as_formula(layers, x_trains, /*bias_trains=*/true, 1e-12);
      }
}

TEST(AdaptedProducts, WhatTheyDoNotTakeIsComputedAnyway) {
  Layers layers({3, 2}, true, at::kDouble);
  layers.parts[0]->weight.requires_grad_(true);
  const at::Tensor x = at::randn({5, 16}, at::kDouble);
  EXPECT_FALSE(layers.parts[0]->as_adapted(x).has_value());
  EXPECT_FALSE(layers.parts[1]->as_adapted(x.to(at::kFloat)).has_value());
  expect_as_formula(layers, true, false, 1e-12);
}

// Layers that read the same input are one node, so that the sum of their gradients for it is made
// inside of products.
TEST(AdaptedProducts, AreOneNode) {
  Layers layers({3, 0, 5}, false, at::kFloat);
  const auto results = project(at::randn({64, 16}).requires_grad_(), layers.parts);
  for (const at::Tensor& result : results) EXPECT_EQ(result.grad_fn(), results[0].grad_fn());
}

}  // namespace
}  // namespace floe::nn::lora_test
