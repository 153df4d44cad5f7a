#include "floe/batch/packed_batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "floe/core/error.h"

namespace floe::packed_batch_test {
namespace {

at::Tensor longs(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong); }

// Two sequences of 3 and 2 tokens; the first has one image, the second two.
PackedBatch sample() {
  PackedBatch batch;
  batch.ids = longs({5, 6, 7, 8, 9});
  batch.sequence_offsets = longs({0, 3, 5});
  batch.positions = longs({0, 1, 2, 0, 1});
  batch.labels = longs({kNoLabel, 6, 7, kNoLabel, 9});
  batch.source = longs({0, 1});
  batch.images = at::zeros({3, 3, 4, 4});
  batch.image_offsets = longs({0, 1, 3});
  batch.image_slots = longs({1, 6});
  batch.attended = at::tensor({1, 1, 1, 1, 0}).to(at::kBool);
  batch.sample_keys = {"a", "b"};
  return batch;
}

std::string defect(const std::function<void(PackedBatch&)>& spoil) {
  PackedBatch batch = sample();
  spoil(batch);
  try {
    batch.validate();
  } catch (const DataError& e) {
    return e.what();
  }
  return "";
}

TEST(PackedBatch, CountsAndValidates) {
  const PackedBatch batch = sample();
  batch.validate();
  EXPECT_EQ(batch.num_tokens(), 5);
  EXPECT_EQ(batch.num_sequences(), 2);
  EXPECT_EQ(batch.num_images(), 3);
  EXPECT_EQ(batch.num_labels(), 3);
}

TEST(PackedBatch, ARankWithoutSequencesIsFine) {
  PackedBatch batch;
  batch.ids = batch.positions = batch.labels = batch.source = longs({});
  batch.sequence_offsets = batch.image_offsets = longs({0});
  batch.images = at::zeros({0, 3, 4, 4});
  batch.validate();
  EXPECT_EQ(batch.num_sequences(), 0);
  EXPECT_EQ(batch.num_labels(), 0);
}

TEST(PackedBatch, EveryDefectNamesItsField) {
  const std::vector<std::pair<std::string, std::function<void(PackedBatch&)>>> cases{
      {"ids", [](PackedBatch& b) { b.ids = b.ids.to(at::kInt); }},
      {"positions",
       [](PackedBatch& b) {
         b.positions = longs({0, 1, 2});
       }},
      {"labels", [](PackedBatch& b) { b.labels = longs({1}); }},
      {"sequence_offsets",
       [](PackedBatch& b) {
         b.sequence_offsets = longs({0, 4, 3});
       }},
      {"sequence_offsets",
       [](PackedBatch& b) {
         b.sequence_offsets = longs({0, 3, 6});
       }},
      {"sequence_offsets",
       [](PackedBatch& b) {
         b.sequence_offsets = longs({1, 3, 5});
       }},
      {"image_offsets",
       [](PackedBatch& b) {
         b.image_offsets = longs({0, 1, 2});
       }},
      {"image_offsets",
       [](PackedBatch& b) {
         b.image_offsets = longs({0, 3});
       }},
      {"images",
       [](PackedBatch& b) {
         b.images = at::zeros({3, 1, 4, 4});
       }},
      {"images",
       [](PackedBatch& b) {
         b.images = at::zeros({3, 3, 4, 4}, at::kLong);
       }},
      {"sample_keys", [](PackedBatch& b) { b.sample_keys.pop_back(); }},
      {"ids", [](PackedBatch& b) { b.ids = at::Tensor(); }},
  };
  for (const auto& [field, spoil] : cases) {
    const std::string message = defect(spoil);
    EXPECT_NE(message.find(field), std::string::npos) << field << ": '" << message << "'";
  }
}

TEST(PackedBatch, ToSharesWhatIsThereAlready) {
  const PackedBatch batch = sample();
  const PackedBatch same = batch.to(at::kCPU);
  EXPECT_TRUE(same.ids.is_same(batch.ids));
  EXPECT_EQ(same.sample_keys, batch.sample_keys);
  same.validate();
}

}  // namespace
}  // namespace floe::packed_batch_test
