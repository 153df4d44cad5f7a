#include "floe/observe/diagnostics/dtypes.h"

#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "tests/diag/sharded_model.h"

namespace floe::diagnostics::dtypes_test {
namespace {

const models::TransformerSize kSize{.vocab = 50, .dim = 16, .layers = 2, .heads = 2, .context = 8};

shard::ShardOptions configured() {
  shard::ShardOptions options;
  options.mixed_precision = {.param = at::kBFloat16, .reduce = at::kFloat, .buffer = at::kFloat};
  options.trainable = {{"layers.1.*"}};
  return options;
}

template <class F>
std::string shard_error(F&& f) {
  try {
    f();
  } catch (const ShardError& e) {
    return e.what();
  }
  return "no error";
}

// The masters of the set that rests are in host memory; what is left of it is stored as it is used.
TEST_RANKS(Dtypes, MastersThatAreAwayAreNoError, 2) {
  shard::ShardOptions options = configured();
  options.trainable.reset();
  options.sets = {{"upper", {"layers.1.*"}, shard::Rest::offload},
                  {"lower", {"layers.0.*"}, shard::Rest::drop}};
  test::ShardedModel sharded(kSize, options);
  const optim::AdamW lower(*sharded.engine, {}, 1);
  sharded.step(2, 8);
  for (const std::size_t set : {1, 0}) {
    sharded.engine->activate(set);
    check_dtypes(*sharded.engine, *sharded.optimizer, options);
    check_dtypes(*sharded.engine, lower, options);
  }
  EXPECT_EQ(dtype_line(*sharded.engine, *sharded.optimizer),
            "in memory: trainable slices fp32, resting slices bf16, frozen slices bf16, parameters "
            "in use bf16, optimizer state fp32");
}

TEST_RANKS(Dtypes, AreThoseThatWereConfigured, 2) {
  test::ShardedModel sharded(kSize, configured());
  CollectiveTypes types(configured());
  sharded.engine->add_observer(&types);
  const comm::Mesh& mesh = sharded.engine->world().mesh(2);
  const comm::Traffic before = mesh.shard->traffic();
  sharded.step(2, 8, [&](MemoryPoint point) {
    if (point == MemoryPoint::before_optimizer_step)
      check_dtypes(*sharded.engine, *sharded.optimizer, configured());
  });
  check_dtypes(*sharded.engine, *sharded.optimizer, configured());
  types.check();
  EXPECT_EQ(
      dtype_line(*sharded.engine, *sharded.optimizer),
      "in memory: trainable slices fp32, frozen slices bf16, parameters in use bf16, optimizer "
      "state fp32");

  // What was seen is what was sent.
  const comm::Traffic now = mesh.shard->traffic();
  const auto& tallies = types.tallies();
  const auto gathers = tallies.at({"all-gathers", at::kBFloat16});
  const auto reductions = tallies.at({"gradient reductions", at::kFloat});
  EXPECT_EQ(tallies.size(), 2U);
  EXPECT_EQ(gathers.count, now.all_gathers - before.all_gathers);
  EXPECT_EQ(gathers.bytes, now.all_gather_bytes - before.all_gather_bytes);
  EXPECT_EQ(reductions.count, now.reduce_scatters - before.reduce_scatters);
  EXPECT_EQ(reductions.bytes, now.reduce_scatter_bytes - before.reduce_scatter_bytes);
  EXPECT_NE(types.line().find("all-gathers in bf16"), std::string::npos);
  sharded.engine->remove_observer(&types);
}

// An engine that never heard of the configuration's dtypes.
TEST_RANKS(Dtypes, ThatDidNotArriveAreErrorsThatNameTheGroup, 2) {
  shard::ShardOptions given = configured();
  given.mixed_precision = {};
  test::ShardedModel sharded(kSize, given);
  const std::string in_memory =
      shard_error([&] { check_dtypes(*sharded.engine, *sharded.optimizer, configured()); });
  EXPECT_TRUE(
      in_memory.starts_with("parameter 'positions.weight' of group '(root) frozen' computes in "
                            "fp32, but strategy.mixed_precision.param is bf16: "))
      << in_memory;

  CollectiveTypes types(configured());
  sharded.engine->add_observer(&types);
  sharded.step(2, 8);
  const std::string error = shard_error([&] { types.check(); });
  EXPECT_NE(error.find("is gathered in fp32, but strategy.mixed_precision.param is bf16"),
            std::string::npos)
      << error;
  sharded.engine->remove_observer(&types);
}

TEST_RANKS(Dtypes, AReductionInAnotherDtype, 2) {
  shard::ShardOptions given = configured();
  given.mixed_precision.reduce = at::kBFloat16;
  test::ShardedModel sharded(kSize, given);
  CollectiveTypes types(configured());
  sharded.engine->add_observer(&types);
  sharded.step(2, 8);
  const std::string error = shard_error([&] { types.check(); });
  EXPECT_NE(error.find("group 'layers.1 trainable' is reduced in bf16, but "
                       "strategy.mixed_precision.reduce is fp32"),
            std::string::npos)
      << error;
  sharded.engine->remove_observer(&types);
}

void check_eight_bit(at::ScalarType dtype, const std::string& name) {
  shard::ShardOptions given = configured(), other = configured();
  given.frozen.dtype = dtype;
  other.frozen.dtype = dtype == at::kChar ? at::kFloat8_e4m3fn : at::kChar;
  test::ShardedModel sharded(kSize, given);
  CollectiveTypes types(given);
  sharded.engine->add_observer(&types);
  sharded.step(2, 8);
  sharded.engine->remove_observer(&types);
  types.check();
  check_dtypes(*sharded.engine, *sharded.optimizer, given);
  EXPECT_NE(types.line().find("all-gathers in " + name), std::string::npos) << types.line();
  EXPECT_NE(dtype_line(*sharded.engine, *sharded.optimizer).find(name), std::string::npos);
  const std::string wrong =
      shard_error([&] { check_dtypes(*sharded.engine, *sharded.optimizer, other); });
  EXPECT_NE(wrong.find("is stored in " + name + ", but strategy.frozen.dtype is "),
            std::string::npos)
      << wrong;
}
TEST_RANKS(Dtypes, FrozenMatricesInInt8, 2) { check_eight_bit(at::kChar, "int8"); }
TEST_RANKS(Dtypes, FrozenMatricesInFp8, 2) { check_eight_bit(at::kFloat8_e4m3fn, "fp8"); }

TEST_RANKS(Dtypes, FrozenStorageAndBuffers, 1) {
  test::ShardedModel sharded(kSize, configured());
  shard::ShardOptions other = configured();
  other.frozen.dtype = at::kFloat;
  const std::string frozen =
      shard_error([&] { check_dtypes(*sharded.engine, *sharded.optimizer, other); });
  EXPECT_NE(frozen.find("is stored in bf16, but strategy.frozen.dtype is fp32"), std::string::npos)
      << frozen;
  other.frozen.dtype = at::kChar;
  const std::string matrices =
      shard_error([&] { check_dtypes(*sharded.engine, *sharded.optimizer, other); });
  EXPECT_NE(matrices.find("is stored in bf16, but strategy.frozen.dtype is int8"),
            std::string::npos)
      << matrices;

  sharded.model().register_buffer("late", at::zeros({3}, at::kDouble));
  const std::string buffer =
      shard_error([&] { check_dtypes(*sharded.engine, *sharded.optimizer, configured()); });
  EXPECT_NE(buffer.find("buffer 'late' is in fp64, but strategy.mixed_precision.buffer is fp32"),
            std::string::npos)
      << buffer;
}

}  // namespace
}  // namespace floe::diagnostics::dtypes_test
