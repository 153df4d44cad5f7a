// What a boundary sees and may replace.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "floe/nn/layers.h"

namespace floe::nn::boundary_test {
namespace {

// Adds 100 to every floating-point input and doubles every output.
struct Meddler : Boundary {
  void before_forward(TensorRefs& inputs) override {
    log += "b";
    num_inputs = inputs.size();
    for (at::Tensor* input : inputs) {
      seen.push_back(*input);
      if (at::isFloatingType(input->scalar_type())) *input = *input + 100;
    }
  }
  void after_forward(TensorRefs& outputs) override {
    log += "a";
    num_outputs = outputs.size();
    for (at::Tensor* output : outputs) *output = *output * 2;
  }
  std::string log;
  std::vector<at::Tensor> seen;
  std::size_t num_inputs = 0, num_outputs = 0;
};

at::Tensor number(double value) { return at::full({}, value, at::kDouble); }
double value(const at::Tensor& tensor) { return tensor.item<double>(); }

struct State {
  at::Tensor own;
  std::map<int, int> untouched;
  std::vector<at::Tensor> list;
  template <class F>
  void visit_tensors(F&& f) {
    f(own);
    f(list);
  }
};

struct Everything : Module {
  using Result = std::tuple<at::Tensor, std::vector<at::Tensor>, int>;
  // By value, as a module may take its inputs.
  // NOLINTBEGIN(performance-unnecessary-value-param)
  Result forward(const at::Tensor& plain, std::optional<at::Tensor> maybe,
                 std::optional<at::Tensor> not_there, std::vector<std::optional<at::Tensor>> list,
                 std::tuple<at::Tensor, int> pair, std::pair<int, std::array<at::Tensor, 2>> array,
                 State state, const std::string& text) {
    // NOLINTEND(performance-unnecessary-value-param)
    got = {value(plain), value(*maybe)};
    EXPECT_FALSE(not_there);
    for (const auto& item : list)
      if (item) got.push_back(value(*item));
    got.push_back(value(std::get<0>(pair)));
    for (const auto& item : array.second)
      if (item.defined()) got.push_back(value(item));
    got.push_back(value(state.own));
    for (const auto& item : state.list) got.push_back(value(item));
    EXPECT_EQ(text, "text");
    EXPECT_EQ(std::get<1>(pair) + array.first, 7);
    return {number(1), {number(2), at::Tensor(), number(3)}, 4};
  }
  std::vector<double> got;
};

Everything::Result call_everything(Everything& module, const at::Tensor& plain) {
  return call(module, plain, std::optional(number(2)), std::optional<at::Tensor>(),
              std::vector<std::optional<at::Tensor>>{number(3), std::nullopt, number(4)},
              std::make_tuple(number(5), 3), std::make_pair(4, std::array{number(6), at::Tensor()}),
              State{number(7), {}, {number(8), number(9)}}, std::string("text"));
}

TEST(Boundary, WithoutOneTheCallIsTheForward) {
  Everything module;
  const auto [one, list, four] = call_everything(module, number(1));
  EXPECT_EQ(module.got, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(value(one), 1);
  EXPECT_EQ(value(list[2]), 3);
  EXPECT_EQ(four, 4);
}

TEST(Boundary, ForwardSeesWhatBeforeForwardLeft) {
  Everything module;
  Meddler meddler;
  module.boundary = &meddler;
  const at::Tensor plain = number(1);
  const auto [one, list, four] = call_everything(module, plain);
  EXPECT_EQ(meddler.log, "ba");
  EXPECT_EQ(meddler.num_inputs, 9U);
  for (std::size_t i = 0; i < meddler.seen.size(); ++i)
    EXPECT_EQ(value(meddler.seen[i]), static_cast<double>(i + 1)) << "in order";
  EXPECT_EQ(module.got, (std::vector<double>{101, 102, 103, 104, 105, 106, 107, 108, 109}));
  EXPECT_EQ(value(plain), 1) << "the caller's tensors are its own";

  EXPECT_EQ(meddler.num_outputs, 3U);
  EXPECT_EQ(value(one), 2);
  EXPECT_EQ(value(list[0]), 4);
  EXPECT_FALSE(list[1].defined());
  EXPECT_EQ(value(list[2]), 6);
  EXPECT_EQ(four, 4);
  module.boundary = nullptr;
  call_everything(module, plain);
  EXPECT_EQ(meddler.log, "ba");
}

struct Adder : Module {
  at::Tensor forward(const at::Tensor& x) {
    address = &x;
    calls += 1;
    if (fails) throw std::runtime_error("in forward");
    return x + 1;
  }
  const at::Tensor* address = nullptr;
  int calls = 0;
  bool fails = false;
};

TEST(Boundary, WithoutOneNothingIsCopied) {
  Adder adder;
  const at::Tensor x = number(1);
  call(adder, x);
  EXPECT_EQ(adder.address, &x);
}

TEST(Boundary, OncePerCallAndInnerInsideOuter) {
  struct Outer : Module {
    Outer() {
      items = child<List<Adder>>("items");
      items->add();
      items->add();
    }
    at::Tensor forward(at::Tensor x) {
      for (const auto& item : *items) x = item(x);
      return (*items)[0](x);
    }
    Ptr<List<Adder>> items;
  } outer;
  Meddler around, first, second;
  outer.boundary = &around;
  (*outer.items)[0]->boundary = &first;
  (*outer.items)[1]->boundary = &second;
  // ((((0+100) +100+1)*2 +100+1)*2 +100+1)*2, then *2 outside
  EXPECT_EQ(value(call(outer, number(0))), 2 * (2 * (2 * (2 * 201 + 101) + 101)));
  EXPECT_EQ(around.log, "ba");
  EXPECT_EQ(first.log, "baba");
  EXPECT_EQ(second.log, "ba");
  EXPECT_EQ((*outer.items)[0]->calls, 2);
}

TEST(Boundary, AFailedForwardHasNoAfter) {
  Adder adder;
  Meddler meddler;
  adder.boundary = &meddler;
  adder.fails = true;
  EXPECT_THROW(call(adder, number(1)), std::runtime_error);
  EXPECT_EQ(meddler.log, "b");
}

TEST(Boundary, AFunctionWithoutModuleHasOneToo) {
  Meddler meddler;
  BoundarySlot slot;
  slot.boundary = &meddler;
  const auto y = call_through(
      slot, [](const at::Tensor& x, double k) { return x * k; }, number(1), 3.0);
  EXPECT_EQ(value(y), 2 * 101 * 3);
}

TEST(TensorsOf, ThingsWithoutTensors) {
  std::tuple<int, std::string, std::vector<int>, std::optional<double>> none{1, "a", {1}, 2.0};
  EXPECT_TRUE(tensors_of(none).empty());
  at::Tensor undefined;
  EXPECT_TRUE(tensors_of(undefined).empty());
}

}  // namespace
}  // namespace floe::nn::boundary_test
