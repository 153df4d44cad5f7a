// Modules: parameters without memory, names, classes, trainability.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "floe/core/error.h"
#include "floe/models/transformer.h"
#include "floe/nn/call.h"
#include "floe/nn/layers.h"
#include "floe/observe/diagnostics/memory_counter.h"

namespace floe::nn::nn_test {
namespace {

struct Huge : Module {
  Huge() { weight = parameter("weight", {1 << 20, 1 << 20}, Init::normal(0.02)); }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};

TEST(Deferred, ATrillionElementsTakeNoMemory) {
  auto& memory = diagnostics::MemoryCounter::install();
  const auto before = memory.current_bytes();
  Huge huge;
  EXPECT_EQ(memory.current_bytes(), before);
  EXPECT_EQ(huge.weight.numel(), std::int64_t{1} << 40);
  EXPECT_EQ(huge.weight.scalar_type(), at::kFloat);
  EXPECT_TRUE(huge.weight.requires_grad());
  EXPECT_TRUE(huge.weight.is_leaf());
  EXPECT_TRUE(is_deferred(huge.weight));
  EXPECT_EQ(huge.parameters().size(), 1U);
  EXPECT_TRUE(huge.parameters()[0].is_same(huge.weight));
}

TEST(Deferred, WhatIsAndWhatIsNot) {
  EXPECT_TRUE(is_deferred(deferred({2, 3}, at::kBFloat16)));
  EXPECT_EQ(deferred({2, 3}, at::kBFloat16).scalar_type(), at::kBFloat16);
  EXPECT_TRUE(deferred({2, 3}).is_contiguous());
  EXPECT_FALSE(is_deferred(deferred({0})));
  EXPECT_FALSE(is_deferred(at::empty({0})));
  EXPECT_FALSE(is_deferred(at::empty({1})));
}

TEST(Deferred, ReadingIsAnErrorNotACrash) {
  const at::Tensor empty = deferred({4, 4});
  const at::Tensor x = at::ones({2, 4});
  EXPECT_ANY_THROW(empty.sum());
  EXPECT_ANY_THROW(empty.clone());
  try {
    const at::Tensor sum = empty + 1;
    ADD_FAILURE() << "read";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("no memory yet; call fully_shard or materialize"),
              std::string::npos)
        << e.what();
  }
  EXPECT_ANY_THROW(at::linear(x, empty));
  EXPECT_ANY_THROW(at::embedding(empty, at::zeros({1}, at::kLong)));
  EXPECT_ANY_THROW(x.matmul(empty.t()));
}

TEST(Deferred, MaterializeGivesMemoryAndValues) {
  models::Transformer model({.vocab = 11, .dim = 8, .layers = 2, .heads = 2, .context = 4});
  for (const auto& p : model.parameters()) EXPECT_TRUE(is_deferred(p));
  materialize(model, 3);
  for (auto& p : named_parameters(model)) {
    EXPECT_FALSE(is_deferred(p.tensor)) << p.name;
    EXPECT_TRUE(p.tensor.requires_grad()) << p.name;
    at::Tensor expected = at::empty({p.tensor.numel()});
    fill(*p.init, 3, p.name, 0, expected);
    EXPECT_TRUE(p.tensor.detach().reshape({-1}).equal(expected)) << p.name;
  }
  EXPECT_EQ(model.forward(at::zeros({2, 4}, at::kLong)).size(2), 11);
  // What has values keeps them.
  const at::Tensor kept = model.parameters()[0].detach().clone();
  materialize(model, 4);
  EXPECT_TRUE(model.parameters()[0].equal(kept));
}

// ---- names ----

struct Tied : Module {
  explicit Tied(bool head_first) {
    if (head_first) head = child<Linear>("head", 4, 10, false);
    embed = child<Embedding>("embed", 10, 4, Init::normal(0.5));
    if (!head_first) head = child<Linear>("head", 4, 10, false);
    head->tie_weight(embed->weight);
  }
  Ptr<Embedding> embed;
  Ptr<Linear> head;
};

TEST(NamedParameters, TiedWeightsCountOnce) {
  Tied model(false);
  const auto all = named_parameters(model);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].name, "embed.weight");
  EXPECT_EQ(all[0].other_names, (std::vector<std::string>{"head.weight"}));
  EXPECT_EQ(all[0].owners,
            (std::vector<torch::nn::Module*>{model.embed.ptr().get(), model.head.ptr().get()}));
  materialize(model, 1);
  EXPECT_FALSE(is_deferred(model.head->weight));
  EXPECT_TRUE(model.head->weight.is_same(model.embed->weight));
}

// The initial values are those of the module that made the parameter, whichever comes first.
TEST(NamedParameters, ATiedHeadMayComeFirst) {
  Tied model(true);
  const auto all = named_parameters(model);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].name, "head.weight");
  EXPECT_EQ(all[0].other_names, (std::vector<std::string>{"embed.weight"}));
  ASSERT_NE(all[0].init, nullptr);
  EXPECT_EQ(all[0].init->b, 0.5);
  EXPECT_NO_THROW(materialize(model, 1));
  EXPECT_GT(model.embed->weight.abs().max().item<double>(), 0.3);
}

TEST(NamedParameters, OnlyEqualShapesCanBeTied) {
  Linear a(4, 10), b(5, 10);
  EXPECT_THROW(a.tie_weight(b.weight), Error);
}

struct Shared : Module {
  Shared() {
    auto norm = std::make_shared<LayerNorm>(3);
    first = register_module("first", std::make_shared<List<Linear>>());
    first->add(3, 3);
    first->register_module("norm", norm);
    second = register_module("second", std::make_shared<List<Linear>>());
    second->register_module("norm", norm);
    second->add(3, 2);
    own = parameter("gate", {1}, Init::zeros());
  }
  std::shared_ptr<List<Linear>> first, second;
  at::Tensor own;
};

TEST(NamedParameters, AModuleUnderTwoParentsCountsOnce) {
  Shared model;
  std::vector<std::string> names;
  for (const auto& p : named_parameters(model)) names.push_back(p.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"gate", "first.0.weight", "first.0.bias", "first.norm.weight",
                                      "first.norm.bias", "second.0.weight", "second.0.bias"}));
  const auto all = named_parameters(model);
  EXPECT_EQ(all[3].other_names, (std::vector<std::string>{"second.norm.weight"}));
  EXPECT_EQ(all[3].owners.size(), 2U);
  EXPECT_EQ(all[3].owners[0], all[3].owners[1]);
}

TEST(NamedParameters, ForeignModulesHaveNoInit) {
  struct Mixed : Module {
    Mixed() {
      child<Linear>("ours", 2, 2, false);
      register_module("theirs", std::make_shared<torch::nn::LinearImpl>(2, 2));
    }
  } model;
  const auto all = named_parameters(model);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_NE(all[0].init, nullptr);
  EXPECT_EQ(all[1].name, "theirs.weight");
  EXPECT_EQ(all[1].init, nullptr);
  EXPECT_NO_THROW(materialize(model, 0));
}

// ---- classes ----

template <class T>
struct Box : Module {};
struct PlainImpl : torch::nn::Module {};
struct Impl : torch::nn::Module {};
struct HookedUp : Module {};

TEST(ClassName, AsAPolicyNamesIt) {
  EXPECT_EQ(class_name(Linear(1, 1)), "Linear");
  EXPECT_EQ(class_name(models::plain::DecoderLayer({.dim = 8, .heads = 2})), "DecoderLayer");
  EXPECT_EQ(class_name(torch::nn::LinearImpl(1, 1)), "Linear");
  EXPECT_EQ(class_name(PlainImpl()), "Plain");
  EXPECT_EQ(class_name(Impl()), "Impl");
  EXPECT_EQ(class_name(HookedUp()), "HookedUp");
  EXPECT_EQ(class_name(Hooked<torch::nn::LinearImpl>(1, 1)), "Linear");
  EXPECT_EQ(class_name(List<models::plain::DecoderLayer>()), "List");
  EXPECT_EQ(class_name(Box<torch::nn::LinearImpl>()), "Box");
  EXPECT_EQ(class_name(Box<Hooked<torch::nn::LinearImpl>>()), "Box");
  struct Local : Module {};
  EXPECT_EQ(class_name(Local()), "Local");
  // Through a base, too.
  const std::shared_ptr<torch::nn::Module> base = std::make_shared<Linear>(1, 1);
  EXPECT_EQ(class_name(*base), "Linear");
}

// ---- trainability ----

std::vector<std::string> trainable_names(torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& p : named_parameters(model))
    if (p.tensor.requires_grad()) names.push_back(p.name);
  return names;
}

TEST(SetTrainable, ExactlyWhatMatches) {
  Shared model;
  set_trainable(model, {"*.norm.*", "gate"});
  EXPECT_EQ(trainable_names(model),
            (std::vector<std::string>{"gate", "first.norm.weight", "first.norm.bias"}));
  set_trainable(model, {"second.0.weight"});
  EXPECT_EQ(trainable_names(model), (std::vector<std::string>{"second.0.weight"}));
  set_trainable(model, {});
  EXPECT_TRUE(trainable_names(model).empty());
  set_trainable(model, {"*"});
  EXPECT_EQ(trainable_names(model).size(), 7U);
}

TEST(SetTrainable, AnyOfAParametersNamesWillDo) {
  Shared model;
  set_trainable(model, {"second.norm.bias"});
  EXPECT_EQ(trainable_names(model), (std::vector<std::string>{"first.norm.bias"}));
  Tied tied(false);
  set_trainable(tied, {"head.*"});
  EXPECT_EQ(trainable_names(tied), (std::vector<std::string>{"embed.weight"}));
}

TEST(SetTrainable, APatternThatMatchesNothingChangesNothing) {
  Shared model;
  set_trainable(model, {"gate"});
  try {
    set_trainable(model, {"first.*", "second.0.wieght"});
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("'second.0.wieght' matches no parameter"), std::string::npos) << text;
    EXPECT_NE(text.find("did you mean 'second.0.weight'"), std::string::npos) << text;
    EXPECT_EQ(e.exit(), Exit::usage);
  }
  EXPECT_EQ(trainable_names(model), (std::vector<std::string>{"gate"}));
}

}  // namespace
}  // namespace floe::nn::nn_test
