// Optimizers on slices against whole parameters in double precision.
//
// One process is rank r of W here (a fake world). The model's gradients are given numbers, whatever
// its parameters are: loss = Σ (parameter × coefficient).sum().
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>

#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/nn/layers.h"
#include "floe/optim/optim_config.h"
#include "floe/optim/optimizers/adamw.h"
#include "floe/optim/optimizers/lion.h"
#include "floe/optim/optimizers/registry.h"
#include "floe/optim/optimizers/sgd.h"
#include "floe/shard/group/flat_group.h"
#include "floe/shard/plan/plan.h"
#include "tests/support/ranks.h"

namespace floe::optim::optim_test {
namespace {

using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

struct Bag : nn::Module {
  explicit Bag(const Shapes& shapes) {
    for (const auto& [name, shape] : shapes)
      parameters_.push_back(parameter(name, shape, nn::Init::normal(1)));
  }
  at::Tensor forward(const std::vector<at::Tensor>& coefficients) {
    at::Tensor sum = at::zeros({}, coefficients.front().options());
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      sum = sum + (parameters_[i] * coefficients[i]).sum();
    return sum;
  }
  std::vector<at::Tensor> parameters_;
};

struct TwoBags : nn::Module {
  TwoBags() {
    first = child<Bag>("first", Shapes{{"weight", {25, 8}}, {"bias", {8}}});
    second = child<Bag>("second", Shapes{{"weight", {3, 4}}, {"bias", {1}}, {"scale", {6}}});
  }
  at::Tensor forward(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                     bool both) {
    const at::Tensor x = first(a);
    return both ? x + second(b) : x;
  }
  nn::Ptr<Bag> first, second;
};

// The whole model beside one rank's slices of it.
class Case {
 public:
  Case(int rank, int world, shard::ShardOptions options = {}) {
    model = std::make_shared<TwoBags>();
    nn::materialize(*model, 9);
    for (auto& p : nn::named_parameters(*model)) {
      values[p.name] = p.tensor.detach().to(at::kDouble).reshape({-1}).clone();
      shapes[p.name] = p.tensor.sizes().vec();
    }
    options.world = comm::World::fake(rank, world, test::device());
    engine = shard::fully_shard(model, {.units = {"Bag"}}, options);
  }

  // Gradients of step `step`, by name, flat.
  std::map<std::string, at::Tensor> backward(int step, bool both = true) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step) + 1);
    std::map<std::string, at::Tensor> gradients;
    std::vector<at::Tensor> coefficients;
    for (const auto& p : engine->plan().parameters) {
      const at::Tensor coefficient = at::randn(p.shape, generator);
      coefficients.push_back(coefficient.to(test::device()));
      gradients[p.name] = coefficient.to(at::kDouble).reshape({-1});
    }
    const std::vector<at::Tensor> a(coefficients.begin(), coefficients.begin() + 2),
        b(coefficients.begin() + 2, coefficients.end());
    nn::call(*model, a, b, both).backward();
    return gradients;
  }

  // Calls f(name, elements of the whole parameter that the slice has, the slice's elements).
  template <class F>
  void each_piece(const std::function<at::Tensor(const shard::FlatGroup&, std::size_t)>& of,
                  F&& f) const {
    std::size_t g = 0;
    for (const shard::FlatGroup* group : engine->trainable_groups()) {
      const at::Tensor slice = of(*group, g++);
      for (const shard::Piece& piece : group->pieces())
        f(group->parameter(piece.index).name, piece.first,
          slice.narrow(0, piece.slice_offset, piece.numel).cpu());
    }
  }

  void expect_slices_of(const std::map<std::string, at::Tensor>& whole, double bound,
                        int step) const {
    std::int64_t seen = 0;
    each_piece([](const shard::FlatGroup& group, std::size_t) { return group.slice(); },
               [&](const std::string& name, std::int64_t first, const at::Tensor& slice) {
                 const at::Tensor expected = whole.at(name).narrow(0, first, slice.numel());
                 const double difference =
                     (slice.to(at::kDouble) - expected).abs().max().template item<double>();
                 EXPECT_LE(difference, bound) << name << " from " << first << " in step " << step;
                 seen += slice.numel();
               });
    EXPECT_GT(seen, 0);
  }

  std::shared_ptr<TwoBags> model;
  std::shared_ptr<shard::Engine> engine;
  std::map<std::string, at::Tensor> values;  // flat, double
  std::map<std::string, std::vector<std::int64_t>> shapes;
};

constexpr std::array<std::pair<int, int>, 10> kPlaces{
    {{0, 1}, {0, 2}, {1, 2}, {0, 3}, {1, 3}, {2, 3}, {0, 4}, {3, 4}, {0, 64}, {63, 64}}};

TEST(AdamW, EqualsTheFormulaOnWholeParameters) {
  const AdamWOptions options{0.8, 0.95, 1e-6, {0.1, {"*weight"}}};
  for (const auto& [rank, world] : kPlaces) {
    if (rank == 63) continue;  // only padding there; see below
    SCOPED_TRACE(str("rank ", rank, " of ", world));
    Case c(rank, world);
    AdamW optimizer(*c.engine, options);
    std::map<std::string, at::Tensor> averages, squares;
    std::map<std::string, at::Tensor> fused, fused_averages, fused_squares;
    for (const auto& [name, value] : c.values) {
      averages[name] = at::zeros_like(value);
      squares[name] = at::zeros_like(value);
      fused[name] = value.to(at::kFloat);
      fused_averages[name] = at::zeros_like(fused[name]);
      fused_squares[name] = at::zeros_like(fused[name]);
    }
    for (int step = 0; step < 8; ++step) {
      const double lr = 0.01 * (1 + step % 3), t = step + 1;
      for (const auto& [name, g] : c.backward(step)) {
        const double decay = name.ends_with("weight") ? 0.1 : 0;
        at::Tensor& p = c.values[name];
        p.mul_(1 - lr * decay);
        averages[name].mul_(0.8).add_(g, 1 - 0.8);
        squares[name].mul_(0.95).addcmul_(g, g, 1 - 0.95);
        const at::Tensor mean = averages[name] / (1 - std::pow(0.8, t));
        const at::Tensor root = (squares[name] / (1 - std::pow(0.95, t))).sqrt();
        p.sub_(lr * mean / (root + 1e-6));
        at::_fused_adamw_({fused[name]}, {g.to(at::kFloat)}, {fused_averages[name]},
                          {fused_squares[name]}, {}, {at::full({}, static_cast<float>(t))}, lr, 0.8,
                          0.95, decay, 1e-6, false, false);
      }
      optimizer.step(lr);
      c.engine->clear_gradients();
      c.expect_slices_of(c.values, 2e-6, step);
      // Another device rounds once more or less; values are up to 4.
      c.expect_slices_of(fused, test::device().is_cpu() ? 3e-7 : 1e-6, step);
      c.each_piece(
          [&](const shard::FlatGroup&, std::size_t g) {
            return optimizer.state_slices(g)[0].values;
          },
          [&](const std::string& name, std::int64_t first, const at::Tensor& slice) {
            EXPECT_TRUE(at::allclose(slice.to(at::kDouble),
                                     averages[name].narrow(0, first, slice.numel()), 1e-5, 1e-6));
          });
      c.each_piece(
          [&](const shard::FlatGroup&, std::size_t g) {
            return optimizer.state_slices(g)[1].values;
          },
          [&](const std::string& name, std::int64_t first, const at::Tensor& slice) {
            EXPECT_TRUE(at::allclose(slice.to(at::kDouble),
                                     squares[name].narrow(0, first, slice.numel()), 1e-5, 1e-6));
          });
    }
    EXPECT_EQ(optimizer.updates(0).item<float>(), 8);
  }
}

TEST(AdamW, ARankWithNothingButPaddingSteps) {
  Case c(63, 64);
  AdamW optimizer(*c.engine, {});
  c.backward(0);
  EXPECT_NO_THROW(optimizer.step(0.1));
  for (const auto* group : c.engine->trainable_groups()) {
    EXPECT_TRUE(group->pieces().empty());
    EXPECT_EQ(group->slice().abs().sum().item<double>(), 0);
  }
}

TEST(AdamW, AUnitThatWasSkippedRests) {
  Case c(1, 3);
  AdamW optimizer(*c.engine, {.decay = {0.5, {}}});
  c.backward(0);
  optimizer.step(0.1);
  c.engine->clear_gradients();
  const at::Tensor before = c.engine->trainable_groups()[1]->slice().clone();
  const at::Tensor first = c.engine->trainable_groups()[0]->slice().clone();
  const at::Tensor average = optimizer.state_slices(1)[0].values.clone();
  c.backward(1, /*both=*/false);
  optimizer.step(0.1);
  c.engine->clear_gradients();
  EXPECT_TRUE(c.engine->trainable_groups()[1]->slice().equal(before));
  EXPECT_TRUE(optimizer.state_slices(1)[0].values.equal(average));
  EXPECT_EQ(optimizer.updates(1).item<float>(), 1);
  EXPECT_FALSE(c.engine->trainable_groups()[0]->slice().equal(first));
  EXPECT_EQ(optimizer.updates(0).item<float>(), 2);
}

TEST(AdamW, MastersAreFp32UnderMixedPrecision) {
  shard::ShardOptions mixed;
  mixed.mixed_precision.param = at::kBFloat16;
  mixed.mixed_precision.reduce = at::kBFloat16;
  Case c(0, 2, mixed);
  AdamW optimizer(*c.engine, {});
  c.backward(0);
  const auto* group = c.engine->trainable_groups()[0];
  EXPECT_EQ(group->gradient().scalar_type(), at::kFloat);
  const at::Tensor before = group->slice().clone();
  optimizer.step(1e-4);  // far below what bf16 could hold beside values around 1
  EXPECT_EQ(group->slice().scalar_type(), at::kFloat);
  EXPECT_NEAR((group->slice() - before).abs().max().item<double>(), 1e-4, 2e-5);
}

TEST(Sgd, EqualsTheFormulaOnWholeParameters) {
  for (const double momentum : {0.0, 0.9})
    for (const auto& [rank, world] : kPlaces) {
      if (rank == 63) continue;
      SCOPED_TRACE(str("momentum ", momentum, ", rank ", rank, " of ", world));
      Case c(rank, world);
      Sgd optimizer(*c.engine, {momentum, {0.05, {"first.*"}}});
      std::map<std::string, at::Tensor> buffers;
      for (int step = 0; step < 6; ++step) {
        const double lr = 0.02 * (1 + step % 2);
        // As torch.optim.SGD: the first buffer is the gradient itself.
        for (const auto& [name, g] : c.backward(step)) {
          at::Tensor d = name.starts_with("first.") ? g + 0.05 * c.values[name] : g;
          if (momentum > 0) {
            auto& buffer = buffers[name];
            buffer = buffer.defined() ? momentum * buffer + d : d;
            d = buffer;
          }
          c.values[name].sub_(lr * d);
        }
        const at::Tensor gradient = c.engine->trainable_groups()[0]->gradient().clone();
        optimizer.step(lr);
        EXPECT_TRUE(c.engine->trainable_groups()[0]->gradient().equal(gradient))
            << "the gradient belongs to the engine";
        c.engine->clear_gradients();
        c.expect_slices_of(c.values, 2e-6, step);
      }
    }
}

TEST(Registry, MakesWhatItSays) {
  Case c(0, 2);
  for (const auto& [name, kind] : enum_names(OptimizerKind{})) {
    OptimizerConfig config;
    config.type = kind;
    const auto optimizer = make_optimizer(config, *c.engine, 0, DecayRule{}, RateRule{});
    EXPECT_EQ(optimizer->state_names(), optimizer_type(kind).state(config)) << name;
    EXPECT_EQ(optimizer->values_per_element(), num_moments(config)) << name;
  }
}

// ---- decay as element ranges ----

TEST(Ranges, EveryElementHasItsParametersDecay) {
  const DecayRule rule{0.1, {"*weight", "second.scale"}};
  bool cut = false;
  for (const auto& [rank, world] : kPlaces) {
    SCOPED_TRACE(str("rank ", rank, " of ", world));
    Case c(rank, world);
    for (const auto* group : c.engine->trainable_groups()) {
      const auto& layout = group->plan().layout;
      std::vector<double>
          expected;  // of every element of the slice, from where it lies in the whole
      for (std::int64_t e = rank * layout.slice_numel(); e < (rank + 1) * layout.slice_numel(); ++e)
        for (std::size_t i = 0; i < layout.size(); ++i)
          if (e >= layout.offset(i) && e < layout.offset(i) + layout.numel(i)) {
            const std::string& name = group->parameter(i).name;
            expected.push_back(glob_match_any(rule.patterns, name) ? 0.1 : 0);
            cut = cut || (e == rank * layout.slice_numel() && e > layout.offset(i));
          }
      std::vector<double> got;
      const auto ranges = ranges_of(*group, rule);
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        EXPECT_EQ(ranges[i].first, static_cast<std::int64_t>(got.size())) << "without gaps";
        EXPECT_GT(ranges[i].numel, 0);
        if (i > 0) {
          EXPECT_NE(ranges[i].weight_decay, ranges[i - 1].weight_decay) << "neighbours join";
        }
        got.insert(got.end(), static_cast<std::size_t>(ranges[i].numel), ranges[i].weight_decay);
      }
      EXPECT_EQ(got, expected);
    }
  }
  EXPECT_TRUE(cut) << "some slice begins inside a parameter";
}

// first: weight [25, 8] and bias [8]; 208 elements in slices of 96, so weight lies on three ranks.
TEST(Ranges, AParameterCutTwice) {
  const auto ranges = [](int rank) {
    Case c(rank, 3);
    return ranges_of(*c.engine->trainable_groups()[0], {0.5, {"first.weight"}});
  };
  for (const int rank : {0, 1}) {
    const auto found = ranges(rank);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].first, 0);
    EXPECT_EQ(found[0].numel, 96);
    EXPECT_EQ(found[0].weight_decay, 0.5);
  }
  const auto last = ranges(2);
  ASSERT_EQ(last.size(), 2U);
  EXPECT_EQ(last[0].numel, 8);
  EXPECT_EQ(last[0].weight_decay, 0.5);
  EXPECT_EQ(last[1].first, 8);
  EXPECT_EQ(last[1].numel, 8);
  EXPECT_EQ(last[1].weight_decay, 0);
}

TEST(Ranges, WithoutPatternsEverythingDecays) {
  Case c(0, 1);
  const auto ranges = ranges_of(*c.engine->trainable_groups()[1], {0.5, {}});
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(ranges[0].numel, 12 + 1 + 6);
  EXPECT_EQ(ranges[0].weight_decay, 0.5);
}

// ---- rates as element ranges ----

const RateRule kRates{{{"first.bias", 0.05}, {"*.scale", 0.05}, {"second.weight", 0.002}}};

// Whatever the step's own rate is, and with the same schedule.
double rate_of(const std::string& name, double lr, double schedule) {
  if (name == "first.bias" || name == "second.scale") return 0.05 * schedule;
  return name == "second.weight" ? 0.002 * schedule : lr;
}

TEST(Rates, AdamWEqualsTheFormulaOnWholeParameters) {
  for (const auto& [rank, world] : kPlaces) {
    if (rank == 63) continue;
    SCOPED_TRACE(str("rank ", rank, " of ", world));
    Case c(rank, world);
    AdamW optimizer(*c.engine, {0.8, 0.95, 1e-6, {0.1, {"*weight"}}, kRates});
    std::map<std::string, at::Tensor> averages, squares;
    for (int step = 0; step < 6; ++step) {
      const double schedule = 0.25 * (1 + step % 4), base = 0.01 * schedule, t = step + 1;
      for (const auto& [name, g] : c.backward(step)) {
        const double lr = rate_of(name, base, schedule);
        at::Tensor &average = averages[name], &square = squares[name];
        if (!average.defined()) average = at::zeros_like(g), square = at::zeros_like(g);
        c.values[name].mul_(1 - lr * (name.ends_with("weight") ? 0.1 : 0));
        average.mul_(0.8).add_(g, 1 - 0.8);
        square.mul_(0.95).addcmul_(g, g, 1 - 0.95);
        const at::Tensor root = (square / (1 - std::pow(0.95, t))).sqrt();
        c.values[name].sub_(lr * (average / (1 - std::pow(0.8, t))) / (root + 1e-6));
      }
      optimizer.step(base, 1, schedule);
      c.engine->clear_gradients();
      c.expect_slices_of(c.values, 2e-6, step);
    }
  }
}

TEST(Rates, SgdEqualsTheFormulaOnWholeParameters) {
  for (const double momentum : {0.0, 0.9})
    for (const auto& [rank, world] : kPlaces) {
      if (rank == 63) continue;
      SCOPED_TRACE(str("momentum ", momentum, ", rank ", rank, " of ", world));
      Case c(rank, world);
      Sgd optimizer(*c.engine, {momentum, {0.05, {"first.*"}}, kRates});
      std::map<std::string, at::Tensor> buffers;
      for (int step = 0; step < 6; ++step) {
        const double schedule = 0.5 * (1 + step % 2), factor = 0.7;
        for (const auto& [name, g] : c.backward(step)) {
          at::Tensor d = factor * g;
          if (name.starts_with("first.")) d = d + 0.05 * c.values[name];
          if (momentum > 0) {
            at::Tensor& buffer = buffers[name];
            buffer = buffer.defined() ? momentum * buffer + d : d;
            d = buffer;
          }
          c.values[name].sub_(rate_of(name, 0.02 * schedule, schedule) * d);
        }
        optimizer.step(0.02 * schedule, factor, schedule);
        c.engine->clear_gradients();
        c.expect_slices_of(c.values, 2e-6, step);
      }
    }
}

// The update as published, in double precision.
TEST(Lion, EqualsTheFormulaOnWholeParameters) {
  for (const auto& [rank, world] : kPlaces) {
    if (rank == 63) continue;
    SCOPED_TRACE(str("rank ", rank, " of ", world));
    Case c(rank, world);
    Lion optimizer(*c.engine, {0.9, 0.98, {0.1, {"*weight"}}, kRates});
    std::map<std::string, at::Tensor> averages;
    for (int step = 0; step < 8; ++step) {
      const double schedule = 0.25 * (1 + step % 4), base = 0.01 * schedule;
      const double factor = step % 3 == 0 ? 1 : 0.25;
      for (const auto& [name, gradient] : c.backward(step)) {
        const double lr = rate_of(name, base, schedule);
        const at::Tensor g = factor * gradient;
        at::Tensor &p = c.values[name], &average = averages[name];
        if (!average.defined()) average = at::zeros_like(g);
        p = p * (1 - lr * (name.ends_with("weight") ? 0.1 : 0)) -
            lr * at::sign(0.9 * average + (1 - 0.9) * g);
        average = 0.98 * average + (1 - 0.98) * g;
      }
      optimizer.step(base, factor, schedule);
      c.engine->clear_gradients();
      c.expect_slices_of(c.values, 2e-6, step);
      c.each_piece(
          [&](const shard::FlatGroup&, std::size_t g) {
            return optimizer.state_slices(g)[0].values;
          },
          [&](const std::string& name, std::int64_t first, const at::Tensor& slice) {
            EXPECT_TRUE(at::allclose(slice.to(at::kDouble),
                                     averages[name].narrow(0, first, slice.numel()), 1e-5, 1e-6));
          });
    }
  }
}

TEST(Rates, NeighboursThatDifferInOneSettingStayApart) {
  Case c(0, 1);
  const auto ranges = ranges_of(*c.engine->trainable_groups()[1], {0.5, {"*"}},
                                {{{"second.bias", 0.1}, {"second.scale", 0.1}}});
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges[0].numel, 12);
  EXPECT_FALSE(ranges[0].lr);
  EXPECT_EQ(ranges[1].numel, 1 + 6);
  EXPECT_EQ(ranges[1].lr, 0.1);
}

// As torch's optimizers list them: a group for every rate and decay that some parameter has.
TEST(Rates, GroupsForCheckpoints) {
  const auto listed = [](const Optimizer& optimizer) {
    std::vector<std::string> all;
    for (const ParameterGroup& group : optimizer.parameter_groups())
      all.push_back(str(group.lr, " ", group.weight_decay, ": ", join(group.names)));
    return all;
  };
  Case c(1, 2);
  AdamW adamw(*c.engine, {.decay = {0.5, {"*weight"}}, .rates = kRates});
  adamw.set_first_lr(1);
  using Lines = std::vector<std::string>;
  EXPECT_EQ(listed(adamw), (Lines{"1 0.5: first.weight", "1 0: second.bias",
                                  "0.05 0: first.bias, second.scale", "0.002 0.5: second.weight"}));
  c.backward(0);
  adamw.step(0.5, 1, 0.5);
  EXPECT_EQ(listed(adamw),
            (Lines{"0.5 0.5: first.weight", "0.5 0: second.bias",
                   "0.025 0: first.bias, second.scale", "0.001 0.5: second.weight"}));
  EXPECT_EQ(listed(Sgd(*c.engine, {.decay = {0.5, {"*"}}, .rates = {{{"*", 0.25}}}})),
            (Lines{str("0.25 0.5: ", join(adamw.parameter_groups()[0].names), ", first.bias, ",
                       "second.weight, second.bias, second.scale")}));
}

template <class F>
std::string config_error(F&& call) {
  try {
    call();
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.exit(), Exit::usage);
    return e.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(Patterns, OneThatMatchesNothingNamesItsNeighbours) {
  Case c(0, 2);
  const DecayRule wrong{0.1, {"first.*", "second.wieght"}};
  for (const std::string& text : {config_error([&] { AdamW(*c.engine, {.decay = wrong}); }),
                                  config_error([&] { Sgd(*c.engine, {.decay = wrong}); })}) {
    EXPECT_NE(text.find("'second.wieght' matches no trainable parameter"), std::string::npos)
        << text;
    EXPECT_NE(text.find("did you mean 'second.weight'"), std::string::npos) << text;
  }
}

TEST(Patterns, ARateForNothingAndTwoRatesForOne) {
  shard::ShardOptions options;
  options.trainable = {"first.*"};
  Case c(0, 2, options);
  const auto refused = [&](const RateRule& rates) {
    return config_error([&] { AdamW(*c.engine, {.rates = rates}); });
  };
  std::string text = refused({{{"second.*", 0.1}}});
  EXPECT_NE(text.find("'second.*' matches no trainable parameter"), std::string::npos) << text;
  EXPECT_NE(text.find("lr_patterns"), std::string::npos) << text;
  text = refused({{{"first.*", 0.1}, {"*weight", 0.2}}});
  for (const char* part : {"'first.weight'", "'first.*' (0.1)", "'*weight' (0.2)"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_NO_THROW(AdamW(*c.engine, {.rates = {{{"first.*", 0.1}, {"*weight", 0.1}}}}));
}

TEST(Patterns, FrozenParametersDoNotCount) {
  shard::ShardOptions options;
  options.trainable = {"first.*"};
  Case c(0, 2, options);
  const std::string text = config_error([&] { AdamW(*c.engine, {.decay = {0.1, {"second.*"}}}); });
  EXPECT_NE(text.find("matches no trainable parameter"), std::string::npos) << text;
  EXPECT_NO_THROW(AdamW(*c.engine, {.decay = {0.1, {"*weight"}}}));
}

TEST(Patterns, AnyNameOfATiedParameterWillDo) {
  struct Tied : nn::Module {
    Tied() {
      embed = child<nn::Embedding>("embed", 10, 4);
      head = child<nn::Linear>("head", 4, 10, false);
      head->tie_weight(embed->weight);
    }
    at::Tensor forward(const at::Tensor& ids) { return head(embed(ids)); }
    nn::Ptr<nn::Embedding> embed;
    nn::Ptr<nn::Linear> head;
  };
  shard::ShardOptions options;
  options.world = comm::World::fake(0, 2, test::device());
  auto engine = shard::fully_shard(std::make_shared<Tied>(), {}, options);
  ASSERT_EQ(engine->trainable_groups().size(), 1U);
  EXPECT_NO_THROW(AdamW(*engine, {.decay = {0.1, {"head.*"}}}));
  const auto ranges = ranges_of(*engine->trainable_groups()[0], {0.1, {"head.*"}});
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(ranges[0].weight_decay, 0.1);
}

// ---- clipping ----

at::Tensor all_gradients(const shard::Engine& engine) {
  std::vector<at::Tensor> all;
  for (const auto* group : engine.trainable_groups()) all.push_back(group->gradient().clone());
  return at::cat(all);
}

TEST(Clip, ByNormAsTorchDoesIt) {
  Case c(0, 1);
  c.backward(0);
  const at::Tensor before = all_gradients(*c.engine);
  const double norm = c.engine->agree().gradient_norm;
  EXPECT_NEAR(norm, before.norm().item<double>(), 1e-5);
  EXPECT_EQ(clip_factor(norm, 10 * norm), 1) << "below the limit nothing changes";
  EXPECT_DOUBLE_EQ(clip_factor(norm, 0.25), 0.25 / (norm + 1e-6));
  EXPECT_EQ(clip_factor(0, 0.25), 1);
}

// A factor inside of the update is the same as gradients that were multiplied before it.
TEST(Clip, AFactorInsideOfTheUpdate) {
  constexpr double kFactor = 0.0371;
  const auto trained = [&](auto make, bool inside) {
    Case c(1, 3);
    const auto optimizer = make(*c.engine);
    for (int step = 0; step < 5; ++step) {
      c.backward(step);
      for (const auto* group : c.engine->trainable_groups())
        if (at::Tensor gradient = group->gradient(); !inside) gradient.mul_(kFactor);
      optimizer->step(0.05, inside ? kFactor : 1);
      c.engine->clear_gradients();
    }
    std::vector<at::Tensor> all;
    for (const auto* group : c.engine->trainable_groups()) all.push_back(group->slice().clone());
    return at::cat(all);
  };
  const auto compare = [&](auto make) {
    EXPECT_TRUE(at::allclose(trained(make, true), trained(make, false), 1e-6, 1e-7));
  };
  compare([](shard::Engine& engine) {
    // A large eps, without which Adam would hide a factor that is wrong but steady.
    return std::make_unique<AdamW>(engine, AdamWOptions{.eps = 1e-2, .decay = {0.1, {}}});
  });
  for (const double momentum : {0.0, 0.9})
    compare([&](shard::Engine& engine) {
      return std::make_unique<Sgd>(engine, SgdOptions{momentum, {0.05, {"first.*"}}});
    });
}

TEST(Clip, ByValue) {
  Case c(2, 3);
  c.backward(0);
  const at::Tensor before = all_gradients(*c.engine);
  ASSERT_GT(before.abs().max().item<double>(), 0.5);
  clip_by_value(*c.engine, 0.5);
  EXPECT_TRUE(all_gradients(*c.engine).equal(before.clamp(-0.5, 0.5)));
}

TEST(Clip, WithoutGradientsNothingHappens) {
  Case c(0, 2);
  EXPECT_NO_THROW(clip_by_value(*c.engine, 0.1));
}

// ---- memory ----

TEST(StateBytes, TwoMomentsPerOwnedElement) {
  for (const auto& [rank, world] : kPlaces) {
    Case c(rank, world);
    // first: 208 elements, second: 19; slices of whole 128 bytes
    const auto slice = [world = world](std::int64_t numel) {
      return world == 1 ? numel : round_up(ceil_div(numel, world), 32);
    };
    const std::int64_t owned = slice(208) + slice(19);
    AdamW adamw(*c.engine, {});
    EXPECT_EQ(adamw.state_bytes(), 2 * 4 * owned) << rank << " of " << world;
    EXPECT_EQ(adamw.state_bytes(), c.engine->plan().held().optimizer_state);

    Sgd plain(*c.engine, {}), momentum(*c.engine, {.momentum = 0.9});
    c.backward(0);
    plain.step(0.1);
    momentum.step(0.1);
    EXPECT_EQ(plain.state_bytes(), 0);
    EXPECT_EQ(momentum.state_bytes(), 4 * owned);
    EXPECT_EQ(Lion(*c.engine, {}).state_bytes(), 4 * owned);
  }
}

TEST(StateBytes, FrozenParametersHaveNone) {
  shard::ShardOptions options;
  options.trainable = {"second.scale"};
  Case c(0, 1, options);
  EXPECT_EQ(AdamW(*c.engine, {}).state_bytes(), 2 * 4 * 6);
}

}  // namespace
}  // namespace floe::optim::optim_test
