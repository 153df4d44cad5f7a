#include "floe/packing/packing.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/data/loader_corpus.h"

namespace floe::packing::packing_test {
namespace {

using namespace data;

struct Both {
  std::unique_ptr<Shards> pairs = laion_shards(2, 20);
  Shards documents;
  DataConfig config;

  Both() {
    documents.add(mmc4_shard(0, 20));
    config = laion_config(pairs->pattern(), 4);
    config.block<Mmc4Config>().emplace();
    config.block<Mmc4Config>()->shards = documents.pattern();
    config.block<Mmc4Config>()->batch_size = 3;
  }
};

std::vector<std::int64_t> numbers_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(),
          tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

TEST(Packing, MakesValidBatchesOfAllSourcesAndOfEach) {
  const Both both;
  Loader loader(both.config, context());
  for (int i = 0; i < 20; ++i) {
    const Batch step = loader.next();
    const PackedBatch all = pack(step);
    all.validate();
    EXPECT_EQ(all.num_sequences(), 7);
    EXPECT_EQ(numbers_of(all.source), (std::vector<std::int64_t>{0, 0, 0, 0, 1, 1, 1}));
    EXPECT_EQ(all.images.size(2), 8);
    // Not one picture is copied.
    EXPECT_EQ(all.images.const_data_ptr<float>(), step.images->data());
    const PackedBatch pairs = pack(step, 0), documents = pack(step, 1);
    pairs.validate();
    documents.validate();
    EXPECT_EQ(pairs.num_images(), 4);
    EXPECT_EQ(documents.images.const_data_ptr<float>(),
              step.images->data() + 4 * step.shape.numel_each());
    EXPECT_EQ(pairs.num_tokens() + documents.num_tokens(), all.num_tokens());
    EXPECT_EQ(pairs.num_labels() + documents.num_labels(), all.num_labels());
    EXPECT_EQ(documents.sample_keys, step.sources[1].keys);
    EXPECT_EQ(numbers_of(pairs.image_slots), (std::vector<std::int64_t>{1, 1, 1, 1}));
    EXPECT_EQ(numbers_of(documents.image_slots),
              std::vector<std::int64_t>(3, both.config.block<Mmc4Config>()->max_images));
    EXPECT_EQ(numbers_of(documents.image_offsets), step.sources[1].image_offsets);
  }
  EXPECT_THROW(pack(loader.next(), 2), Error);
}

// Memory is used again only when nobody refers to it any more.
TEST(Packing, HeldTensorsKeepTheirPictures) {
  const Both both;
  Loader loader(both.config, context()), reference(both.config, context());
  std::vector<PackedBatch> held;
  std::vector<Batch> expected;
  std::set<const float*> places;
  for (int i = 0; i < 30; ++i) {
    PackedBatch batch = pack(loader.next(), static_cast<std::size_t>(i % 2));
    places.insert(batch.images.const_data_ptr<float>());
    expected.push_back(reference.next());
    if (i < 5) held.push_back(std::move(batch));
  }
  for (std::size_t i = 0; i < held.size(); ++i)
    EXPECT_TRUE(at::equal(held[i].images, pack(expected[i], i % 2).images)) << i;
  EXPECT_LT(places.size(), 20U);
}

TEST(Packing, TextHasNoPictures) {
  test::Scratch folder;
  std::string lines;
  for (int i = 0; i < 50; ++i)
    lines += "{\"text\": \"document number " + std::to_string(i) + "\"}\n";
  DataConfig config;
  config.block<TextConfig>().emplace();
  config.block<TextConfig>()->files = folder.write("0.jsonl", lines);
  config.block<TextConfig>()->tokens = 40;
  Loader loader(config, context());
  const PackedBatch batch = pack(loader.next());
  batch.validate();
  EXPECT_EQ(batch.num_tokens(), 40);
  EXPECT_EQ(batch.num_images(), 0);
  EXPECT_TRUE(at::equal(batch.labels, batch.ids));
}

}  // namespace
}  // namespace floe::packing::packing_test
