// The timeline of real steps: spans nest, collectives are those of the plan, times add up, and the
// trace is what Perfetto reads.
#include "floe/observe/diagnostics/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/diag/sharded_model.h"
#include "tests/io/scratch.h"

namespace floe::diagnostics::timeline_test {
namespace {

const models::TransformerSize kSize{
    .vocab = 64, .dim = 32, .layers = 3, .heads = 4, .context = 16, .adapter = 8};

struct Recorded {
  explicit Recorded(shard::ShardOptions options = {}, int steps = 2,
                    const shard::Policy& policy = {.units = {"DecoderLayer"}})
      : sharded(kSize, std::move(options), policy), timeline(sharded.engine->world().device()) {
    sharded.engine->add_observer(&timeline);
    for (int step = 1; step <= steps; ++step) {
      timeline.begin_step(step);
      sharded.step(2, 16);
      timeline.end_step();
    }
    timeline.wait();
    sharded.engine->remove_observer(&timeline);
  }
  std::int64_t count(Span::Kind kind, const std::string& name = "") const {
    const auto spans = timeline.spans();
    return std::count_if(spans.begin(), spans.end(), [&](const Span& span) {
      return span.kind == kind && (name.empty() || span.name == name);
    });
  }

  test::ShardedModel sharded;
  Timeline timeline;
};

// Each span lies inside or beside every other one.
void expect_nested(const std::vector<Span>& spans) {
  for (const Span& a : spans) {
    EXPECT_LE(a.begin_us, a.end_us);
    for (const Span& b : spans) {
      const bool apart = a.end_us <= b.begin_us || b.end_us <= a.begin_us;
      const bool inside = (a.begin_us <= b.begin_us && b.end_us <= a.end_us) ||
                          (b.begin_us <= a.begin_us && a.end_us <= b.end_us);
      EXPECT_TRUE(apart || inside) << name_of(a.kind) << " " << a.name << " and " << name_of(b.kind)
                                   << " " << b.name << " cross";
    }
  }
}

TEST_RANKS(Timeline, HasEveryUnitOfEveryPass, 2) {
  const Recorded run;
  EXPECT_EQ(run.count(Span::Kind::step), 2);
  for (const auto& unit : run.sharded.engine->plan().units) {
    EXPECT_EQ(run.count(Span::Kind::forward, unit.label()), 2) << unit.label();
    EXPECT_EQ(run.count(Span::Kind::backward, unit.label()), 2) << unit.label();
  }
  EXPECT_EQ(run.count(Span::Kind::recompute), 0);
  EXPECT_GT(run.count(Span::Kind::gather_wait), 0);
  EXPECT_GT(run.count(Span::Kind::reduce_wait), 0);
  expect_nested(run.timeline.spans());
}

TEST_RANKS(Timeline, FrozenUnitsBelowHaveNoBackward, 2) {
  shard::ShardOptions options;
  options.trainable = {{"layers.1.adapter.*"}};
  const Recorded run(options);
  EXPECT_EQ(run.count(Span::Kind::backward, "layers.0"), 0);
  EXPECT_EQ(run.count(Span::Kind::backward, "layers.1"), 2);
  EXPECT_EQ(run.count(Span::Kind::backward, "layers.2"), 2);
  expect_nested(run.timeline.spans());
}

TEST_RANKS(Timeline, NestsWhenForwardsRunAgain, 2) {
  shard::ShardOptions options;
  options.activation_checkpointing = {"DecoderLayer"};
  const Recorded run(options, 2, {.units = {"DecoderLayer", "*.attention"}});
  EXPECT_EQ(run.count(Span::Kind::backward, "layers.1"), 2);
  EXPECT_EQ(run.count(Span::Kind::forward, "layers.1.attention"), 2);
  EXPECT_EQ(run.count(Span::Kind::recompute, "layers.1.attention"), 2);
  EXPECT_EQ(run.count(Span::Kind::backward, "layers.1.attention"), 2);
  expect_nested(run.timeline.spans());
}

TEST_RANKS(Timeline, CollectivesAreThoseThatWereIssued, 2) {
  shard::ShardOptions options;
  options.mixed_precision.param = at::kBFloat16;
  options.mixed_precision.reduce = at::kFloat;
  const Recorded run(options, 3);
  const comm::Traffic traffic = run.sharded.engine->world().mesh(2).shard->traffic();
  std::int64_t gathers = 0, gathered = 0, reductions = 0, reduced = 0;
  for (const Flight& flight : run.timeline.flights()) {
    EXPECT_LE(flight.begin_us, flight.end_us);
    if (flight.kind == shard::Event::Kind::reduce) {
      EXPECT_EQ(flight.dtype, at::kFloat);
      reductions += 1;
      reduced += flight.bytes;
    } else {
      EXPECT_EQ(flight.dtype, at::kBFloat16);
      gathers += 1;
      gathered += flight.bytes;
    }
  }
  EXPECT_EQ(gathers, traffic.all_gathers);
  EXPECT_EQ(gathered, traffic.all_gather_bytes);
  EXPECT_EQ(reductions, traffic.reduce_scatters);
  EXPECT_EQ(reduced, traffic.reduce_scatter_bytes);
}

TEST_RANKS(Timeline, HybridHasBothReductions, 4) {
  shard::ShardOptions options;
  options.strategy = shard::Strategy::hybrid;
  options.hybrid_shard_size = 2;
  const Recorded run(options);
  std::map<shard::Event::Kind, int> kinds;
  for (const Flight& flight : run.timeline.flights()) kinds[flight.kind] += 1;
  EXPECT_GT(kinds[shard::Event::Kind::reduce], 0);
  EXPECT_EQ(kinds[shard::Event::Kind::replicate], kinds[shard::Event::Kind::reduce]);
}

TEST_RANKS(UnitTimes, AddUpToTheirSteps, 2) {
  const Recorded run;
  const auto& plan = run.sharded.engine->plan();
  const StepTimes times = step_times(run.timeline.spans(), plan);
  EXPECT_EQ(times.num_steps, 2);
  EXPECT_EQ(times.units.size(), plan.units.size());
  double all = 0;
  for (const UnitTime& unit : times.units) {
    EXPECT_GT(unit.forward_s, 0) << unit.unit;
    EXPECT_GT(unit.backward_s, 0) << unit.unit;
    EXPECT_GE(unit.gather_wait_s, 0);
    EXPECT_GE(unit.reduce_wait_s, 0);
    all += unit.total_s();
  }
  EXPECT_TRUE(
      std::is_sorted(times.units.begin(), times.units.end(),
                     [](const auto& a, const auto& b) { return a.total_s() > b.total_s(); }));
  EXPECT_LE(all, times.step_s) << "units are inside of steps and count once";
  EXPECT_NEAR(all, times.gather_wait_s() + times.compute_s() + times.reduce_wait_s(), 1e-9);
  EXPECT_EQ(step_times(without_first_step(run.timeline.spans()), plan).num_steps, 1);
}

TEST(UnitTimes, InnerSpansAndWaitsAreTakenOut) {
  models::Transformer model({.vocab = 64, .dim = 32, .layers = 1, .heads = 4, .context = 16});
  const auto plan = shard::make_plan(model, {.units = {"DecoderLayer"}}, {}, 2);
  using Kind = Span::Kind;
  const StepTimes times = step_times(
      {
          {Kind::gather_wait, "layers.0", "layers.0 trainable", 20, 25},
          {Kind::forward, "layers.0", "", 20, 50},
          {Kind::forward, "(root)", "", 10, 60},
          {Kind::reduce_wait, "", "layers.0 trainable", 80, 87},
          {Kind::recompute, "layers.0", "", 70, 75},
          {Kind::backward, "layers.0", "", 65, 90},
          {Kind::step, "1", "", 0, 100},
      },
      plan);
  ASSERT_EQ(times.units.size(), 2U);
  const UnitTime &layer = times.units[0], &root = times.units[1];
  EXPECT_EQ(layer.unit, "layers.0");
  EXPECT_DOUBLE_EQ(layer.gather_wait_s, 5e-6);
  EXPECT_DOUBLE_EQ(layer.forward_s, 25e-6);
  EXPECT_DOUBLE_EQ(layer.backward_s, 18e-6);
  EXPECT_DOUBLE_EQ(layer.reduce_wait_s, 7e-6);
  EXPECT_DOUBLE_EQ(root.forward_s, 20e-6);
  EXPECT_DOUBLE_EQ(times.step_s, 100e-6);
  const auto lines = time_lines(times, 1, /*of_device=*/false);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_NE(lines[0].find("of the host"), std::string::npos);
  EXPECT_NE(lines[1].find("layers.0"), std::string::npos);
  EXPECT_NE(
      lines[2].find("63% computing in units, 5% waiting for gathers, 7% waiting for reductions"),
      std::string::npos)
      << lines[2];
}

TEST_RANKS(Trace, IsWhatPerfettoReads, 2) {
  const Recorded run;
  const int rank = run.sharded.engine->world().rank();
  const test::Scratch scratch;
  write_trace(run.timeline, scratch.path(), rank);
  const auto trace =
      nlohmann::json::parse(scratch.read("trace/rank_" + std::to_string(rank) + ".json"));
  std::map<std::string, int> phases;
  std::map<std::int64_t, std::vector<nlohmann::json>> collectives;
  for (const auto& event : trace.at("traceEvents")) {
    phases[event.at("ph")] += 1;
    EXPECT_EQ(event.at("pid"), rank);
    if (event.at("ph") == "X") {
      EXPECT_GE(event.at("dur").get<double>(), 0);
      EXPECT_GE(event.at("ts").get<double>(), 0);
    }
    if (event.value("cat", "") == "collective") collectives[event.at("id")].push_back(event);
  }
  EXPECT_EQ(phases["X"], static_cast<int>(run.timeline.spans().size()));
  EXPECT_EQ(phases["b"], phases["e"]);
  EXPECT_EQ(phases["b"], static_cast<int>(run.timeline.flights().size()));
  EXPECT_EQ(phases["M"], 3);
  for (const auto& [id, pair] : collectives) {
    ASSERT_EQ(pair.size(), 2U) << id;
    EXPECT_EQ(pair[0].at("name"), pair[1].at("name"));
    EXPECT_GT(pair[0].at("args").at("bytes").get<std::int64_t>(), 0);
  }
}

}  // namespace
}  // namespace floe::diagnostics::timeline_test
