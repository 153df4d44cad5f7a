// Python's and torch's generators, shard orders and epoch sizes against order_and_random.json.
#include "floe/data/shards/shard_order.h"

#include <gtest/gtest.h>

#include "floe/data/python/random.h"
#include "floe/data/sample.h"
#include "floe/data/stream/shuffle_buffer.h"
#include "tests/data/goldens.h"

namespace floe::data::shard_order_test {
namespace {

using nlohmann::json;

const json& goldens() {
  static const json all = golden("order_and_random.json");
  return all;
}

// `order` whole, or its ends and its digest.
template <class Order>
void expect_order(const json& expected, const Order& order) {
  if (expected.contains("order")) {
    EXPECT_EQ(json(order), expected["order"]);
    return;
  }
  ASSERT_GE(order.size(), 20U);
  EXPECT_EQ(json(Order(order.begin(), order.begin() + 20)), expected["order_first_20"]);
  EXPECT_EQ(json(Order(order.end() - 20, order.end())), expected["order_last_20"]);
  EXPECT_EQ(nlohmann::json(sha256_of_int32(order)), expected["order_sha256_le_i32"]);
}

TEST(ShardOrder, WithoutResampling) {
  ASSERT_FALSE(goldens()["shard_order_not_resampled"].empty());
  for (const json& g : goldens()["shard_order_not_resampled"]) {
    const StreamPlace place{g["rank"], g["world_size"], g["worker"], g["num_workers"]};
    SCOPED_TRACE(g.dump().substr(0, 120));
    expect_order(g, shard_order(g["n_shards"], g["seed"], g["epoch"], place));
  }
}

TEST(ShardOrder, Resampled) {
  ASSERT_FALSE(goldens()["shard_sampling_with_replacement"].empty());
  for (const json& g : goldens()["shard_sampling_with_replacement"]) {
    ResampledShards shards(g["n_shards"], g["worker_info_seed"], g["epoch"], g["num_workers"]);
    for (const json& expected : g["first_30"]) EXPECT_EQ(shards.next(), expected) << g.dump();
  }
}

TEST(ShardOrder, StreamsPartTheShards) {
  std::vector<int> seen(103);
  for (std::int64_t rank = 0; rank < 3; ++rank)
    for (std::int64_t worker = 0; worker < 4; ++worker)
      for (const auto shard : shard_order(103, 5, 1, {rank, 3, worker, 4}))
        ++seen[static_cast<std::size_t>(shard)];
  EXPECT_EQ(seen, std::vector<int>(103, 1));
  EXPECT_TRUE(shard_order(2, 0, 0, {2, 3, 0, 1}).empty());
}

TEST(ShardOrder, PassesOfAnEpoch) {
  const StreamPlace place{1, 2, 0, 2};
  const auto first = shard_order(64, 3, 7, place);
  EXPECT_EQ(shard_order(64, 3, 7, place, Rules::openflamingo, 5), first);
  EXPECT_EQ(shard_order(64, 3, 7, place, Rules::corrected, 0), first);
  auto second = shard_order(64, 3, 7, place, Rules::corrected, 1);
  auto third = shard_order(64, 3, 7, place, Rules::corrected, 2);
  EXPECT_NE(second, first);
  EXPECT_NE(third, first);
  EXPECT_NE(third, second);
  auto sorted = first;
  for (auto* order : {&sorted, &second, &third}) std::sort(order->begin(), order->end());
  EXPECT_EQ(second, sorted) << "a pass reads the same shards";
  EXPECT_EQ(third, sorted);
}

TEST(LoaderSeeds, AsDrawnByTorch) {
  ASSERT_FALSE(goldens()["dataloader_base_seeds"].empty());
  for (const json& g : goldens()["dataloader_base_seeds"]) {
    const auto seeds = loader_base_seeds(g["seed"], g["rank"], 2);
    EXPECT_EQ(seeds[0], g["first_int64"].get<std::uint64_t>());
    EXPECT_EQ(seeds[1], g["second_int64"].get<std::uint64_t>());
  }
}

TEST(BufferShuffle, Goldens) {
  ASSERT_FALSE(goldens()["buffer_shuffle"].empty());
  for (const json& g : goldens()["buffer_shuffle"]) {
    ShuffleBuffer<int> shuffle(ShuffleSize{g["bufsize"], g["initial"]});
    PythonRandom random(g["rng_seed"].get<std::uint64_t>());
    std::vector<int> order;
    int given = 0;
    const int n = g["n"];
    const auto pull = [&] { return given < n ? std::optional(given++) : std::nullopt; };
    while (auto item = shuffle.next(pull, random)) order.push_back(*item);
    SCOPED_TRACE(g.dump().substr(0, 120));
    expect_order(g, order);
  }
}

TEST(BufferShuffle, GoesOnFromASavedState) {
  const auto run = [](bool interrupted) {
    ShuffleBuffer<int> shuffle(ShuffleSize{8, 4});
    PythonRandom random(9);
    std::vector<int> order;
    int given = 0;
    const auto pull = [&] { return given < 40 ? std::optional(given++) : std::nullopt; };
    for (int i = 0; i < 40; ++i) {
      if (interrupted) {
        ShuffleBuffer<int> other(ShuffleSize{8, 4});
        other.restore(shuffle.items(), shuffle.ended());
        shuffle = other;
        PythonRandom other_random(0);
        other_random.set_state(random.state());
        random = other_random;
      }
      order.push_back(shuffle.next(pull, random).value());
    }
    return order;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Coins, PythonAndTorch) {
  ASSERT_FALSE(goldens()["coins"].empty());
  for (const json& g : goldens()["coins"]) {
    PythonRandom python(g["seed"].get<std::uint64_t>());
    TorchRandom torch(g["seed"].get<std::uint64_t>());
    for (std::size_t i = 0; i < g["random"].size(); ++i) {
      const double draw = python.random();
      EXPECT_EQ(draw, g["random"][i].get<double>());
      EXPECT_EQ(!drops_single_image(draw), g["coin_keep"][i].get<bool>());
    }
    for (std::size_t i = 0; i < g["torch_rand1"].size(); ++i) {
      const float draw = torch.rand();
      EXPECT_EQ(draw, g["torch_rand1"][i].get<float>());
      EXPECT_EQ(draw < 0.5F, g["flip"][i].get<bool>());
    }
  }
  for (const json& g : goldens()["batch_flip"]) {
    TorchRandom torch(g["torch_seed"].get<std::uint64_t>());
    for (const json& flip : g["flips"]) EXPECT_EQ(torch.rand() < 0.5F, flip.get<bool>());
  }
}

TEST(PythonRandom, StateAndRanges) {
  PythonRandom a(123456789012345ULL), b(0);
  for (int i = 0; i < 1000; ++i) a.random();
  b.set_state(a.state());
  EXPECT_EQ(a.bits(64), b.bits(64));
  EXPECT_EQ(a.randint(-3, 3), b.randint(-3, 3));
  EXPECT_EQ(PythonRandom(1).below(1), 0U);
  EXPECT_THROW(b.set_state(std::vector<std::uint32_t>(624)), DataError);
  auto wrong = a.state();
  wrong.back() = 625;
  EXPECT_THROW(b.set_state(wrong), DataError);
}

TEST(EpochSize, Goldens) {
  ASSERT_FALSE(goldens()["epoch_sizes"].empty());
  for (const json& g : goldens()["epoch_sizes"]) {
    const EpochSize size =
        epoch_size(g["num_samples"], g["batch_size"], g["world_size"], g["workers"], g["floor"]);
    EXPECT_EQ(nlohmann::json(size.batches), g["num_batches"]) << g.dump();
    EXPECT_EQ(nlohmann::json(size.samples), g["num_samples_rounded"]) << g.dump();
  }
}

}  // namespace
}  // namespace floe::data::shard_order_test
