// What a stream is made of: shards, shuffle buffer, position.
#include <gtest/gtest.h>

#include <numeric>

#include "floe/data/stream/stream_codec.h"
#include "floe/data/stream/stream_reader.h"
#include "floe/data/stream/stream_state.h"
#include "tests/data/loader_corpus.h"

namespace floe::data::stream_test {
namespace {

struct Numbered {
  int number;
  std::int64_t bytes = 1;
};

std::vector<int> shuffled(int count, const ShuffleSize& size, std::uint64_t seed,
                          std::int64_t* most_bytes = nullptr, int bytes_each = 1) {
  ShuffleBuffer<Numbered> buffer(size);
  PythonRandom random(seed);
  std::vector<int> order;
  int next = 0;
  for (;;) {
    while (buffer.wants_more())
      if (next < count)
        buffer.take({next++, bytes_each});
      else
        buffer.end();
    if (most_bytes) *most_bytes = std::max(*most_bytes, buffer.bytes());
    if (buffer.empty()) return order;
    order.push_back(buffer.give(random).number);
  }
}

TEST(ShuffleBuffer, GivesTheOrderOfTheReference) {
  const nlohmann::json entries = golden("order_and_random.json")["buffer_shuffle"];
  ASSERT_GT(entries.size(), 10U);
  for (const auto& entry : entries) {
    const ShuffleSize size{entry["bufsize"], entry["initial"], kGiB};
    const auto order = shuffled(entry["n"], size, entry["rng_seed"]);
    if (entry.contains("order"))
      EXPECT_EQ(order, entry["order"].get<std::vector<int>>());
    else
      EXPECT_EQ(sha256_of_int32(order), entry["order_sha256_le_i32"].get<std::string>());
  }
}

TEST(ShuffleBuffer, BoundsItsBytesAndLosesNothing) {
  std::int64_t most = 0;
  auto order = shuffled(5000, {1000, 500, 3000}, 3, &most, 100);
  EXPECT_LE(most, 3000 + 100);
  EXPECT_GE(most, 3000);
  std::sort(order.begin(), order.end());
  std::vector<int> all(5000);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(order, all);
}

TEST(StreamCodec, NumbersComeBack) {
  std::vector<std::uint64_t> numbers{0, 1, 127, 128, 300, ~std::uint64_t{0}};
  for (std::size_t length = 0; length <= numbers.size(); ++length) {
    const std::vector<std::uint64_t> some(numbers.begin(),
                                          numbers.begin() + static_cast<long>(length));
    EXPECT_EQ(decode_numbers(encode_numbers(some)), some);
  }
  const std::vector<std::uint32_t> words{0, 1, 0xffffffff, 0x01020304};
  EXPECT_EQ(decode_words(encode_words(words)), words);
  EXPECT_THROW(decode_numbers("A"), DataError);
  EXPECT_THROW(decode_numbers("gA=="), DataError);                // goes on, but does not
  EXPECT_THROW(decode_numbers(std::string(20, '/')), DataError);  // more than 64 bits
  EXPECT_THROW(decode_words("AAAA"), DataError);
  EXPECT_THROW(narrow_u32(std::uint64_t{1} << 32), DataError);
}

ShardsOptions options_of(std::int64_t num_shards, bool resampled = false) {
  ShardsOptions options;
  options.num_shards = num_shards;
  options.seed = 5;
  options.worker_seed = 99;
  options.resampled = resampled;
  return options;
}

TEST(StreamShards, ASavedOneGoesOnTheSame) {
  for (const bool resampled : {false, true})
    for (int opened = 0; opened <= 10; ++opened) {
      StreamShards shards(options_of(10, resampled), 3);
      for (int i = 0; i < opened; ++i) shards.open_next();
      shards.forget_before(static_cast<std::uint32_t>(opened / 2));
      StreamShards again = StreamShards::load(shards.save(), options_of(10, resampled));
      EXPECT_EQ(again.num_opened(), shards.num_opened());
      EXPECT_FALSE(opened >= 2 && again.knows(0));
      for (int i = 0; i < 5; ++i) {
        const auto next = shards.open_next();
        EXPECT_EQ(again.open_next(), next);
        if (!next) {
          shards.begin_pass();
          again.begin_pass();
        }
      }
    }
}

// The reader runs ahead; the position that follows it by what was taken is always exact, so that a
// reader that begins there gives the rest.
TEST(StreamReader, GoesOnFromEveryPositionOfItsFollower) {
  const auto shards = laion_shards(3, 7);
  // A sample that goes on in the next shard, under the reference's rules.
  shards->folder.write("0.tar", tar_of({{"a.jpg", "x"}, {"a.txt", "x"}, {"z.jpg", "left"}}));
  shards->folder.write("1.tar", tar_of({{"z.txt", "right"}, {"b.jpg", "x"}, {"c.txt", "x"}}));
  for (const Rules rules : {Rules::openflamingo, Rules::corrected})
    for (const bool resampled : {false, true}) {
      ReaderOptions options;
      options.shards = std::make_shared<const std::vector<std::string>>(
          std::vector{shards->path(0), shards->path(1), shards->path(2)});
      options.rules = rules;
      ShardsOptions dealt = options_of(3, resampled);
      dealt.rules = rules;
      const ShuffleSize size{4, 2, kMiB};
      StreamPosition follower(StreamShards(dealt, 0), size, 1);
      StreamReader reader(follower, std::nullopt, options);
      std::vector<ReadResult> all;
      for (int i = 0; i < 60; ++i) all.push_back(reader.next());
      for (int begin = 0; begin < 30; ++begin) {
        StreamReader again(StreamPosition::load(follower.save(), dealt, size), std::nullopt,
                           options);
        for (int i = begin; i < begin + 30; ++i) {
          const ReadResult given = again.next();
          const ReadResult& expected = all[static_cast<std::size_t>(i)];
          ASSERT_EQ(given.kind, expected.kind) << begin << " " << i;
          ASSERT_EQ(given.ref, expected.ref) << begin << " " << i;
          ASSERT_EQ(given.raw.key, expected.raw.key);
          ASSERT_EQ(given.raw.fields.size(), expected.raw.fields.size());
        }
        const ReadResult& passed = all[static_cast<std::size_t>(begin)];
        follower.advance(passed.progress);
        if (passed.kind == ReadResult::Kind::pass_end)
          follower.begin_pass();
        else
          ASSERT_EQ(follower.give(), passed.ref);
        follower.shards().forget_before(follower.oldest_ordinal());
      }
    }
}

TEST(StreamReader, SaysWhenASampleIsNotThereAnyMore) {
  const auto shards = laion_shards(2, 10);
  ReaderOptions options;
  options.shards = std::make_shared<const std::vector<std::string>>(
      std::vector{shards->path(0), shards->path(1)});
  const ShuffleSize size{8, 8, kMiB};
  StreamPosition follower(StreamShards(options_of(2), 0), size, 1);
  StreamReader reader(follower, std::nullopt, options);
  const ReadResult first = reader.next();
  follower.advance(first.progress);
  follower.give();
  const std::int64_t opened = follower.shards().opened(0).shard;
  shards->folder.write(std::to_string(opened) + ".tar", laion_shard(static_cast<int>(opened), 3));
  std::vector<SampleRef> gone;  // from the fourth sample, which is the seventh file
  for (const SampleRef& sample : follower.buffer().items())
    if (sample.member >= 6) gone.push_back(sample);
  ASSERT_GT(gone.size(), 0U);
  ASSERT_LT(gone.size(), follower.buffer().items().size());
  StreamReader again(follower, std::nullopt, options);
  std::size_t lost = 0, found = 0;
  for (ReadResult given = again.next(); given.kind != ReadResult::Kind::pass_end;
       given = again.next()) {
    (given.kind == ReadResult::Kind::lost ? lost : found) += 1;
    EXPECT_EQ(std::count(gone.begin(), gone.end(), given.ref),
              given.kind == ReadResult::Kind::lost);
  }
  EXPECT_EQ(lost, gone.size());
  EXPECT_EQ(found, 7 - gone.size() + 10);
}

}  // namespace
}  // namespace floe::data::stream_test
