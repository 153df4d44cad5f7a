// LAION and MMC4 samples against the goldens of OpenFlamingo's own code, for every tokenizer.
#include <gtest/gtest.h>

#include <algorithm>

#include "floe/data/shards/shard_list.h"
#include "floe/data/sources/laion.h"
#include "floe/data/sources/mmc4.h"
#include "floe/data/stream/stream_reader.h"
#include "tests/data/goldens.h"
#include "tests/data/tokenizers.h"

namespace floe::data::sample_makers_test {
namespace {

using nlohmann::json;

class Makers : public ::testing::TestWithParam<const char*> {
 protected:
  Makers() : tokens_(GetParam()) {}

  static std::vector<RawSample> read(const std::string& shards, std::size_t* damaged = nullptr) {
    const auto list = expand_shards(goldens_folder() + "corpus/" + shards);
    ReaderOptions options;
    options.shards = std::make_shared<const std::vector<std::string>>(list);
    ShardWalker walker(options, every_nth_shard(0, 1, list.size()));
    std::size_t num_damaged = 0;
    std::vector<RawSample> samples;
    while (!walker.ended()) {
      if (auto found = walker.next()) samples.push_back(std::move(found->raw));
      num_damaged += walker.take_bad_shards().size();
    }
    if (damaged) *damaged = num_damaged;
    return samples;
  }

  static std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

  static std::vector<std::string> crop_digests(const Sample& sample) {
    std::vector<std::string> digests;
    for (std::size_t i = 0; i < sample.num_images(); ++i)
      digests.push_back(sha256_hex(std::as_bytes(sample.crop(i))));
    return digests;
  }

  LaionMaker laion() const { return {*tokens_.tokenizer, tokens_.tokens, transform_, {}}; }
  Mmc4Maker mmc4(const Mmc4Settings& settings = {}) const {
    return {*tokens_.tokenizer, tokens_.tokens, transform_, settings};
  }

  GoldenTokenizer tokens_;
  image::Transform transform_;
};

// The stage of the reference in which our reason belongs.
std::string stage_of(const std::string& reason) {
  return reason == reason::kNoCaptionOrImage ? "filter_no_caption_or_no_image" : "decode";
}

void expect_laion(const json& expected, const RawSample& raw, const Outcome& outcome) {
  SCOPED_TRACE(expected["key"].get<std::string>());
  EXPECT_EQ(nlohmann::json(raw.key), expected["key"]);
  std::vector<std::string> suffixes;
  for (const Field& field : raw.fields) suffixes.push_back(field.suffix);
  EXPECT_EQ(json(suffixes), expected["suffixes"]);
  if (expected["status"] == "dropped") {
    ASSERT_TRUE(std::holds_alternative<Dropped>(outcome));
    EXPECT_EQ(nlohmann::json(stage_of(std::get<Dropped>(outcome).reason)), expected["stage"]);
    return;
  }
  ASSERT_TRUE(std::holds_alternative<Sample>(outcome)) << std::get<Dropped>(outcome).detail;
  const Sample& sample = std::get<Sample>(outcome);
  EXPECT_EQ(nlohmann::json(std::get<std::string>(sample.images.at(0))), expected["image_field"]);
  EXPECT_EQ(nlohmann::json(sample.sizes.at(0).width), expected["width"]);
  EXPECT_EQ(nlohmann::json(sample.sizes.at(0).height), expected["height"]);
  EXPECT_EQ(nlohmann::json(sha256_hex(std::as_bytes(sample.crop(0)))), expected["crop_u8_sha256"]);
}

TEST_P(Makers, LaionSamples) {
  const json expected = golden("laion_samples.json")["samples"];
  const auto samples = read("laion/*.tar");
  ASSERT_EQ(samples.size(), expected.size());
  const LaionMaker maker = laion();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Outcome outcome = maker.make(samples[i]);
    EXPECT_EQ(nlohmann::json(base_name(samples[i].shard)), expected[i]["shard"]);
    expect_laion(expected[i], samples[i], outcome);
    if (const auto* sample = std::get_if<Sample>(&outcome)) {
      EXPECT_EQ(json(sample->ids), expected[i]["ids"][GetParam()]) << expected[i]["case"];
    }
  }
}

TEST_P(Makers, LaionBatches) {
  const json expected = golden("laion_batches.json");
  const std::size_t batch_size = expected["batch_size"];
  std::vector<std::vector<std::int32_t>> kept;
  const LaionMaker maker = laion();
  for (const RawSample& raw : read("laion/*.tar"))
    if (auto outcome = maker.make(raw); std::holds_alternative<Sample>(outcome))
      kept.push_back(std::get<Sample>(outcome).ids);
  const json& batches = expected["batches"][GetParam()];
  ASSERT_EQ(batches.size(), kept.size() / batch_size);
  for (std::size_t b = 0; b < batches.size(); ++b) {
    std::size_t longest = 0;
    for (std::size_t i = 0; i < batch_size; ++i)
      longest = std::max(longest, kept[b * batch_size + i].size());
    for (std::size_t i = 0; i < batch_size; ++i) {
      auto ids = kept[b * batch_size + i];
      std::vector<int> mask(ids.size(), 1);
      ids.resize(longest, tokens_.tokens.pad);
      mask.resize(longest, 0);
      EXPECT_EQ(json(ids), batches[b]["input_ids"][i]);
      EXPECT_EQ(json(mask), batches[b]["attention_mask"][i]);
    }
  }
}

TEST_P(Makers, LaionEdgeShardsAreOneStream) {
  const json expected = golden("laion_edge.json");
  std::size_t damaged = 0;
  const auto samples = read("laion_edge/{000000..000007}.tar", &damaged);
  EXPECT_EQ(damaged, 2U) << "one is cut off, one is missing";
  ASSERT_EQ(samples.size(), expected["samples"].size());
  const LaionMaker maker = laion();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(nlohmann::json(base_name(samples[i].shard)), expected["samples"][i]["shard"]);
    expect_laion(expected["samples"][i], samples[i], maker.make(samples[i]));
  }
}

TEST_P(Makers, Mmc4Documents) {
  const json expected = golden("mmc4_docs.json")["docs"];
  const auto samples = read("mmc4/*.tar");
  ASSERT_EQ(samples.size(), expected.size());
  const Mmc4Maker maker = mmc4();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE(expected[i]["case"].get<std::string>());
    const json& result = expected[i]["result"][GetParam()];
    const Outcome outcome = maker.make(samples[i]);
    EXPECT_EQ(nlohmann::json(samples[i].key), expected[i]["key"]);
    ASSERT_EQ(std::holds_alternative<Sample>(outcome), result["status"] == "kept");
    if (result["status"] != "kept") continue;
    const Sample& sample = std::get<Sample>(outcome);
    auto padded = sample.ids;
    padded.resize(256, tokens_.tokens.pad);
    EXPECT_EQ(json(padded), result["ids"]);
    EXPECT_EQ(nlohmann::json(sample.ids.size()), result["n_attended"]);
    EXPECT_EQ(nlohmann::json(sample.single_image), result["coin_matters"]);
    json images = json::array();
    for (const auto& name : sample.images)
      std::visit([&](const auto& value) { images.push_back(value); }, name);
    EXPECT_EQ(images, result["images_used"]);
    const json& all = expected[i]["crop_u8_sha256"];
    EXPECT_EQ(json(crop_digests(sample)),
              json(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(images.size())));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Makers, ::testing::Values("neox", "opt", "llama"),
                         [](const auto& info) { return std::string(info.param); });

class NeoxMakers : public Makers {};

// As the reference words it when a document is dropped.
std::string reference_error(const Dropped& dropped) {
  if (dropped.reason == reason::kNoImage) return "No images in sample";
  if (dropped.reason == reason::kFewImages) return "Fewer than";
  if (dropped.reason == reason::kImageAtEnd) return "Only one image at the end";
  if (dropped.reason == reason::kBadJson) return "JSONDecodeError";
  if (dropped.reason == reason::kBadImage) return "mage file";
  if (dropped.reason == reason::kBadBase64) return "base64";
  if (dropped.reason == reason::kBadSentence) return "IndexError";
  return "Error";
}

TEST_P(NeoxMakers, Mmc4OtherSettings) {
  const auto samples = read("mmc4/*.tar");
  const json cases = golden("mmc4_other_settings.json");
  ASSERT_EQ(cases.size(), 156U);
  for (const json& expected : cases) {
    SCOPED_TRACE(expected.dump());
    const Mmc4Maker maker = mmc4({.text_sim_threshold = expected["sim_threshold"],
                                  .min_images = expected["min_num_images"],
                                  .max_images = expected["max_num_images"]});
    const auto raw = std::find_if(samples.begin(), samples.end(), [&](const RawSample& sample) {
      return sample.key == expected["key"].get<std::string>();
    });
    ASSERT_NE(raw, samples.end());
    const Outcome outcome = maker.make(*raw);
    ASSERT_EQ(std::holds_alternative<Sample>(outcome), expected["status"] == "kept");
    if (const auto* dropped = std::get_if<Dropped>(&outcome)) {
      const std::string error = expected["error"];
      // Pictures are decoded last here, so another defect of the document may come first.
      const bool bad_picture = error.find("mage file") != std::string::npos;
      if (bad_picture) continue;
      EXPECT_NE(error.find(reference_error(*dropped)), std::string::npos) << dropped->reason;
      continue;
    }
    const Sample& sample = std::get<Sample>(outcome);
    auto padded = sample.ids;
    padded.resize(256, tokens_.tokens.pad);
    EXPECT_EQ(nlohmann::json(sha256_of_int32(padded)), expected["ids_sha256"]);
    EXPECT_EQ(std::count(padded.begin(), padded.end(), tokens_.tokens.image),
              expected["image_tokens"].get<std::int64_t>());
    EXPECT_EQ(nlohmann::json(sample.num_images()), expected["images"]);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, NeoxMakers, ::testing::Values("neox"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace floe::data::sample_makers_test
