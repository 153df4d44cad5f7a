// Foreign modules with a boundary: the same numbers, names and containers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>

#include "floe/nn/call.h"
#include "floe/nn/module.h"

namespace floe::nn::hooked_test {
namespace {

struct Counter : Boundary {
  void before_forward(TensorRefs& inputs) override {
    before += 1;
    num_inputs = inputs.size();
  }
  void after_forward(TensorRefs& outputs) override {
    after += 1;
    num_outputs = outputs.size();
  }
  int before = 0, after = 0;
  std::size_t num_inputs = 0, num_outputs = 0;
};

void copy_parameters(torch::nn::Module& from, torch::nn::Module& to) {
  const at::AutoGradMode grad_off(false);
  const auto source = from.named_parameters();
  for (auto& item : to.named_parameters()) item.value().copy_(source[item.key()]);
}

void expect_same_gradients(torch::nn::Module& a, torch::nn::Module& b) {
  const auto others = b.named_parameters();
  for (auto& item : a.named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().equal(others[item.key()].grad())) << item.key();
  }
}

TEST(Hooked, LinearIsStillALinear) {
  auto plain = std::make_shared<torch::nn::LinearImpl>(4, 3);
  auto hooked = std::make_shared<Hooked<torch::nn::LinearImpl>>(torch::nn::LinearOptions(4, 3));
  copy_parameters(*plain, *hooked);
  const std::shared_ptr<torch::nn::LinearImpl> base = hooked;
  EXPECT_EQ(base->options.out_features(), 3);
  EXPECT_EQ(hooked->named_parameters().keys(), plain->named_parameters().keys());
  Counter counter;
  hooked->boundary = &counter;
  const at::Tensor x = at::rand({5, 4});
  const at::Tensor y = hooked->forward(x);
  EXPECT_TRUE(y.equal(plain->forward(x)));
  EXPECT_EQ(counter.before, 1);
  EXPECT_EQ(counter.after, 1);
  EXPECT_EQ(counter.num_inputs, 1U);
  EXPECT_EQ(counter.num_outputs, 1U);
  y.sum().backward();
  plain->forward(x).sum().backward();
  expect_same_gradients(*plain, *hooked);
}

TEST(Hooked, ATransformerLayerInItsOwnContainer) {
  using Layer = torch::nn::TransformerEncoderLayerImpl;
  const auto options =
      torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.0);
  Layer plain(options);
  auto hooked = std::make_shared<Hooked<Layer>>(options);
  copy_parameters(plain, *hooked);
  Counter counter;
  hooked->boundary = &counter;
  const at::Tensor x = at::rand({6, 2, 8});  // [T, B, D]
  const at::Tensor mask = at::full({6, 6}, -1e9).triu(1);
  const at::Tensor y = hooked->forward(x, mask, {});
  EXPECT_TRUE(y.equal(plain.forward(x, mask, {})));
  EXPECT_EQ(counter.before, 1);
  EXPECT_EQ(counter.num_inputs, 2U) << "the absent mask is no tensor";
  EXPECT_EQ(class_name(*hooked), "TransformerEncoderLayer");

  hooked->checkpointed = true;
  hooked->forward(x, mask, {}).square().sum().backward();
  plain.forward(x, mask, {}).square().sum().backward();
  expect_same_gradients(plain, *hooked);
}

TEST(Hooked, InASequential) {
  torch::nn::Sequential sequential;
  auto first = std::make_shared<Hooked<torch::nn::LinearImpl>>(4, 6);
  auto second = std::make_shared<Hooked<torch::nn::LinearImpl>>(6, 2);
  sequential->push_back("first", first);
  sequential->push_back("second", second);
  Counter one, two;
  first->boundary = &one;
  second->boundary = &two;
  const at::Tensor x = at::rand({3, 4});
  const at::Tensor y = sequential->forward(x);
  EXPECT_TRUE(
      y.equal(at::linear(at::linear(x, first->weight, first->bias), second->weight, second->bias)));
  EXPECT_EQ(one.before + one.after, 2);
  EXPECT_EQ(two.before + two.after, 2);
  EXPECT_EQ(
      sequential->named_parameters().keys(),
      (std::vector<std::string>{"first.weight", "first.bias", "second.weight", "second.bias"}));
  EXPECT_NE(dynamic_cast<BoundarySlot*>(sequential[0].get()), nullptr) << "the engine finds it";
}

}  // namespace
}  // namespace floe::nn::hooked_test
