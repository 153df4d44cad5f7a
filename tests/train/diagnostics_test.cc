// What a run says about itself, from the configuration to the files, on real ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/observe/diagnostics/run_diagnostics.h"
#include "floe/strategy/strategy_options.h"
#include "floe/train/run_config.h"
#include "floe/train/step/precision.h"
#include "tests/diag/sharded_model.h"
#include "tests/io/scratch.h"

namespace floe::train::diagnostics_test {
namespace {

using diagnostics::MemoryPoint;

const models::TransformerSize kSize{.vocab = 64, .dim = 32, .layers = 3, .heads = 4, .context = 16};

// A rank's own run folder, configuration, model and diagnostics.
struct Run {
  explicit Run(
      const std::function<void(RunConfig&)>& change = [](RunConfig&) {},
      const std::optional<shard::ShardOptions>& given = {})
      : world(test::join_world()) {
    config.run.dir = scratch.path();
    config.log.diagnostics = DiagnosticsConfig{.batches = 2, .tree_top_k = 2};
    change(config);
    std::filesystem::create_directories(config.run.folder());
    log::set_rank(world->rank(), world->size());
    log::set_file(scratch.path("log"));
    const config::Value values;
    diagnostics = std::make_unique<diagnostics::RunDiagnostics>(
        config.log.diagnostics, strategy_settings(config, values, world->size()),
        config.run.folder(), *world);
    shard::ShardOptions options = given.value_or(strategy::shard_options_of(config.strategy));
    options.world = world;
    options.trainable = {{"layers.*"}};
    sharded.emplace(kSize, options);
  }
  ~Run() { log::set_file(""); }

  std::vector<std::pair<std::string, double>> step(std::int64_t number, int micro = 1,
                                                   std::int64_t samples = 2) {
    sharded->step(
        samples, 16, [&](MemoryPoint point) { diagnostics->mark(point); }, micro);
    return diagnostics->after_step(number);
  }
  void begin() { diagnostics->begin(*sharded->engine, {sharded->optimizer.get()}); }
  nlohmann::json findings() const {
    return nlohmann::json::parse(scratch.read("run/diagnostics.json"));
  }
  std::string trace_name() const { return str("run/trace/rank_", world->rank(), ".json"); }
  bool said(const std::string& part) const {
    return scratch.read("log").find(part) != std::string::npos;
  }

  test::Scratch scratch;
  std::shared_ptr<comm::World> world;
  RunConfig config;
  std::optional<test::ShardedModel> sharded;  // outlives the diagnostics
  std::unique_ptr<diagnostics::RunDiagnostics> diagnostics;
};

void a_run_from_its_beginning_to_its_end() {
  Run run([](RunConfig& config) { config.log.diagnostics->trace_steps = 3; });
  run.begin();
  const int rank = run.world->rank(), ranks = run.world->size();
  EXPECT_TRUE(run.said(str("this rank (", rank, " of ", ranks, ") holds ")));
  EXPECT_EQ(run.said("strategy: sharding is full_shard"), rank == 0);
  EXPECT_EQ(run.said("units: 4 units: 3 DecoderLayer, 1 root"), rank == 0);
  EXPECT_EQ(run.said("dtypes: in memory: trainable slices fp32, frozen slices bf16"), rank == 0);

  std::set<std::string> names;
  for (const auto& [name, value] : run.step(1)) names.insert(name);
  EXPECT_EQ(names.size(), 10U);
  EXPECT_TRUE(names.contains("memory/after_backward_peak_mib"));
  EXPECT_GT(run.diagnostics->peak_bytes(), 0);
  for (const auto& [name, value] : run.step(2)) names.insert(name);
  EXPECT_TRUE(names.contains("time/compute_s"));
  EXPECT_TRUE(names.contains("time/gather_wait_s"));
  EXPECT_FALSE(std::filesystem::exists(run.scratch.path(run.trace_name())));
  EXPECT_TRUE(run.step(3).empty());
  EXPECT_EQ(run.diagnostics->peak_bytes(), 0);
  EXPECT_TRUE(run.step(4).empty());
  run.world->group()->barrier("all have measured");
  run.diagnostics->end();

  const auto trace = nlohmann::json::parse(run.scratch.read(run.trace_name()));
  const auto& events = trace.at("traceEvents");
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const auto& e) { return e.value("cat", "") == "step"; }),
            3);
  EXPECT_EQ(std::filesystem::exists(run.scratch.path("run/diagnostics.json")), rank == 0);
  if (rank != 0) return;

  const auto found = run.findings();
  std::vector<std::string> keys;
  for (const auto& item : found.items()) keys.push_back(item.key());
  EXPECT_EQ(keys,
            (std::vector<std::string>{"memory", "notes", "ranks", "strategy", "times", "units"}));
  EXPECT_EQ(found["units"].size(), 4U);
  EXPECT_EQ(found["times"].size(), 4U);
  EXPECT_EQ(found["ranks"].size(), static_cast<std::size_t>(ranks));
  const auto memory = run.sharded->engine->memory();
  for (const auto& each : found["ranks"]) {
    EXPECT_EQ(each["trainable_bytes"], memory.trainable_slices);
    EXPECT_EQ(each["frozen_bytes"], memory.frozen_slices);
  }
  // Two batches of five points, of every rank.
  EXPECT_EQ(found["memory"].size(), static_cast<std::size_t>(10 * ranks));
  EXPECT_EQ(found["memory"][1]["point"], "after_forward");
  EXPECT_EQ(found["memory"].back()["rank"], ranks - 1);
  for (const auto& at : found["memory"])
    EXPECT_GE(at["peak_bytes"].get<std::int64_t>(), at["current_bytes"].get<std::int64_t>());
  EXPECT_TRUE(run.said("memory: batch 2 "));
  EXPECT_FALSE(run.said("memory: batch 3 "));
  EXPECT_TRUE(run.said("times: a step takes "));
}
TEST_RANKS(Diagnostics, ARunFromItsBeginningToItsEnd, 1) { a_run_from_its_beginning_to_its_end(); }
TEST_RANKS(Diagnostics, ARunFromItsBeginningToItsEndOnTwoRanks, 2) {
  a_run_from_its_beginning_to_its_end();
}

TEST_RANKS(Diagnostics, OffTheySayAndWriteNothing, 1) {
  Run run([](RunConfig& config) { config.log.diagnostics.reset(); });
  run.begin();
  EXPECT_TRUE(run.step(1).empty());
  run.diagnostics->end();
  EXPECT_EQ(run.scratch.read("log"), "");
  EXPECT_FALSE(std::filesystem::exists(run.scratch.path("run/diagnostics.json")));
}

TEST_RANKS(Diagnostics, NumbersStayAwayFromLoggersOnRequest, 1) {
  Run run([](RunConfig& config) { config.log.diagnostics->to_loggers = false; });
  run.begin();
  EXPECT_TRUE(run.step(1).empty());
  EXPECT_EQ(run.findings()["memory"].size(), 5U);
}

TEST_RANKS(Diagnostics, AFailureInTheMiddleKeepsWhatThereIs, 2) {
  Run run([](RunConfig& config) { config.log.diagnostics->trace_steps = 5; });
  run.begin();
  run.step(1);
  run.diagnostics->mark(MemoryPoint::batch_start);
  const at::Tensor ids = at::zeros({1, 8}, at::kLong).to(test::device());
  nn::call(run.sharded->model(), ids);
  run.diagnostics->mark(MemoryPoint::after_forward);
  run.diagnostics->end();
  const auto trace = nlohmann::json::parse(run.scratch.read(run.trace_name()));
  const auto& events = trace.at("traceEvents");
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const auto& e) { return e.value("cat", "") == "step"; }),
            2);
  if (run.world->rank() == 0) {
    EXPECT_EQ(run.findings()["memory"][0]["batch"], 1);
    EXPECT_EQ(run.findings()["times"].size(), 4U);
  }
}

TEST_RANKS(Diagnostics, RanksWithLargerBatchesAreNamed, 2) {
  Run run;
  run.begin();
  const int rank = run.world->rank();
  for (int step = 1; step <= 2; ++step) run.step(step, 1, rank == 0 ? 2 : 16);
  run.world->group()->barrier("all have measured");
  run.diagnostics->end();
  EXPECT_EQ(run.said("ranks differ in memory: rank 1 peaks at "), rank == 0);
  if (rank == 0) {
    EXPECT_EQ(run.findings()["notes"].size(), 2U) << run.findings()["notes"];
  }
}

TEST_RANKS(Diagnostics, ASkippedBatchIsNoStep, 1) {
  Run run;
  run.begin();
  run.diagnostics->mark(MemoryPoint::batch_start);
  run.diagnostics->mark(MemoryPoint::after_forward);
  run.diagnostics->mark(MemoryPoint::after_backward);
  EXPECT_EQ(run.step(1, /*micro=*/2).size(), 10U) << "the first batch that was not skipped";
  run.diagnostics->mark(MemoryPoint::batch_start);
  EXPECT_EQ(run.step(2).size(), 10U + 4U) << "the second one, which is the last";
  EXPECT_TRUE(run.step(3).empty());
  std::vector<int> batches;
  const auto found = run.findings();
  for (const auto& at : found["memory"])
    if (at["point"] == "batch_start") batches.push_back(at["batch"]);
  EXPECT_EQ(batches, (std::vector{1, 2}));
}

TEST_RANKS(Diagnostics, ADtypeThatDidNotArriveIsAnError, 2) {
  Run run([](RunConfig&) {}, shard::ShardOptions{});
  try {
    run.begin();
    ADD_FAILURE() << "no error";
  } catch (const ShardError& e) {
    EXPECT_NE(std::string(e.what()).find("strategy.mixed_precision.param is bf16"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace floe::train::diagnostics_test
