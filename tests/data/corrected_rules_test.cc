// Each thing that corrected rules mend: what the reference does, and what they do.
// (Samples that merge across shards: grouping_test.cc. Orders of repeated passes:
// shard_order_test.cc. One flip for a whole batch: the loader's tests.)
#include <gtest/gtest.h>

#include "floe/data/sources/laion.h"
#include "floe/data/sources/mmc4.h"
#include "tests/data/sample_pictures.h"
#include "tests/data/tokenizers.h"

namespace floe::data::corrected_rules_test {
namespace {

class Corrected : public ::testing::Test {
 protected:
  Corrected() : tokens_("neox") {}

  Outcome make_mmc4(const nlohmann::json& document, Rules rules, Mmc4Settings settings = {}) const {
    settings.rules = rules;
    return Mmc4Maker(*tokens_.tokenizer, tokens_.tokens, transform_, settings)
        .make(document_sample(document));
  }
  Outcome make_laion(const RawSample& raw, Rules rules) const {
    return LaionMaker(*tokens_.tokenizer, tokens_.tokens, transform_, {.rules = rules}).make(raw);
  }

  std::string text_of(const Outcome& outcome) const {
    if (const auto* dropped = std::get_if<Dropped>(&outcome)) return "dropped: " + dropped->reason;
    return tokens_.tokenizer->decode(std::get<Sample>(outcome).ids);
  }
  static nlohmann::json images_of(const Outcome& outcome) {
    nlohmann::json images = nlohmann::json::array();
    if (const auto* sample = std::get_if<Sample>(&outcome))
      for (const auto& name : sample->images)
        std::visit([&](const auto& value) { images.push_back(value); }, name);
    return images;
  }
  // The crop of a picture made by noise_jpeg(seed, …).
  std::vector<std::uint8_t> crop_of(const Bytes& file) const {
    std::vector<std::uint8_t> crop(transform_.crop_bytes());
    transform_.crop(image::decode(file), crop.data());
    return crop;
  }

  GoldenTokenizer tokens_;
  image::Transform transform_;
};

constexpr Rules kReference = Rules::openflamingo, kCorrected = Rules::corrected;
constexpr const char* kEnd = "<|endofchunk|><|endoftext|>";

TEST_F(Corrected, PicturesFollowTheText) {
  const auto document = page({"a", "b", "c"}, {2, 0, 1});
  const Outcome reference = make_mmc4(document, kReference), ours = make_mmc4(document, kCorrected);
  EXPECT_EQ(images_of(reference), nlohmann::json({0, 1, 2}));
  EXPECT_EQ(images_of(ours), nlohmann::json({1, 2, 0}));
  EXPECT_EQ(text_of(ours), text_of(reference));
  const auto crop = std::get<Sample>(ours).crop(0);
  EXPECT_EQ(std::vector<std::uint8_t>(crop.begin(), crop.end()), crop_of(noise_jpeg(1)))
      << "crops move with their names";
}

TEST_F(Corrected, TheFirstPicturesOfTheTextAreKept) {
  const auto document = page({"a", "b", "c"}, {2, 0, 1});
  const Outcome reference = make_mmc4(document, kReference, {.max_images = 2});
  const Outcome ours = make_mmc4(document, kCorrected, {.max_images = 2});
  EXPECT_EQ(images_of(reference), nlohmann::json({0, 1}));
  EXPECT_EQ(text_of(reference), str("<image>a b<|endofchunk|><image>c", kEnd));
  EXPECT_EQ(images_of(ours), nlohmann::json({1, 2}));
  EXPECT_EQ(text_of(ours), str("<image>a<|endofchunk|><image>b c", kEnd));
}

TEST_F(Corrected, ChatMarksBringThePicturesTheyName) {
  const auto document = chat("x _!_IMAGE2_!_ y _!_IMAGE1_!_ z _!_IMAGE2_!_", 3);
  EXPECT_EQ(images_of(make_mmc4(document, kReference)),
            nlohmann::json({mention(1), mention(2), mention(3)}));
  EXPECT_EQ(images_of(make_mmc4(document, kCorrected)),
            nlohmann::json({mention(2), mention(1), mention(2)}));
}

TEST_F(Corrected, ChatKeepsAsManyMarksAsPictures) {
  const auto document = chat("_!_IMAGE1_!_a _!_IMAGE2_!_b _!_IMAGE3_!_c", 3);
  const Outcome reference = make_mmc4(document, kReference, {.max_images = 2});
  const Outcome ours = make_mmc4(document, kCorrected, {.max_images = 2});
  EXPECT_EQ(text_of(reference), str("<image>a<|endofchunk|>", kEnd));
  EXPECT_EQ(images_of(reference).size(), 2U);
  EXPECT_EQ(text_of(ours), str("<image>a<|endofchunk|><image>b ", kEnd));
  EXPECT_EQ(images_of(ours).size(), 2U);
}

TEST_F(Corrected, ABadPictureIsLeftOutAlone) {
  auto document = page({"a", "b", "c"}, {0, 1, 2});
  Bytes cut = noise_jpeg(1);
  cut.resize(cut.size() - 100);
  for (const auto& bad :
       {nlohmann::json(encode_base64(cut)), nlohmann::json("QQ"), nlohmann::json()}) {
    document["image_info"][1]["image_base64"] = bad;
    EXPECT_TRUE(std::holds_alternative<Dropped>(make_mmc4(document, kReference)));
    const Outcome ours = make_mmc4(document, kCorrected);
    EXPECT_EQ(images_of(ours), nlohmann::json({0, 2}));
    EXPECT_EQ(text_of(ours), str("<image>a b<|endofchunk|><image>c", kEnd));
  }
}

TEST_F(Corrected, ABadChatPictureIsLeftOutWithItsMarks) {
  auto document = chat("_!_IMAGE1_!_a _!_IMAGE2_!_b", 2);
  document["image_map"][mention(1)]["base64_image"] = "QUJD";
  EXPECT_EQ(text_of(make_mmc4(document, kReference)), "dropped: bad_image");
  const Outcome ours = make_mmc4(document, kCorrected);
  EXPECT_EQ(images_of(ours), nlohmann::json({mention(2)}));
  EXPECT_EQ(text_of(ours), str("a<image>b", kEnd));
}

TEST_F(Corrected, MetadataDoesNotDropAPair) {
  RawSample raw{
      "s", "k", {{"jpg", noise_jpeg(0)}, {"txt", bytes_of(" words ")}, {"json", bytes_of("{")}}};
  EXPECT_EQ(text_of(make_laion(raw, kReference)), "dropped: bad_json");
  EXPECT_EQ(text_of(make_laion(raw, kCorrected)), str("<image>words", kEnd));
}

TEST_F(Corrected, TheFirstReadablePictureOfAPairIsTaken) {
  RawSample raw{"s", "k", {{"jpg", bytes_of("no")}, {"txt", {}}, {"png", noise_jpeg(0)}}};
  EXPECT_EQ(text_of(make_laion(raw, kReference)), "dropped: bad_image");
  const Outcome ours = make_laion(raw, kCorrected);
  EXPECT_EQ(images_of(ours), nlohmann::json({"png"}));
  raw.fields[2].bytes.clear();
  EXPECT_EQ(text_of(make_laion(raw, kCorrected)), "dropped: bad_image");
}

TEST_F(Corrected, LiteralMarksAreNoPictures) {
  const auto document = page({"a <image> b", "<|endo<image>fchunk|>c"}, {0, 1});
  const auto count = [&](const Outcome& outcome) {
    const auto& ids = std::get<Sample>(outcome).ids;
    return std::count(ids.begin(), ids.end(), tokens_.tokens.image);
  };
  const Outcome reference = make_mmc4(document, kReference), ours = make_mmc4(document, kCorrected);
  EXPECT_EQ(count(reference), 4);
  EXPECT_EQ(count(ours), 2);
  EXPECT_EQ(text_of(ours), str("<image>a  b<|endofchunk|><image>c", kEnd));

  const RawSample raw{"s", "k", {{"jpg", noise_jpeg(0)}, {"txt", bytes_of("<image> x")}}};
  EXPECT_EQ(count(make_laion(raw, kReference)), 2);
  EXPECT_EQ(text_of(make_laion(raw, kCorrected)), str("<image>x", kEnd));
}

TEST_F(Corrected, PicturesWhoseMarkWasCutAreLeftOut) {
  const auto document = page({"a", "b c d e f g h i j k l m n o p", "z"}, {0, 1, 2});
  const Mmc4Settings settings{.max_tokens = 8};
  EXPECT_EQ(images_of(make_mmc4(document, kReference, settings)), nlohmann::json({0, 1, 2}));
  const Outcome ours = make_mmc4(document, kCorrected, settings);
  EXPECT_EQ(images_of(ours), nlohmann::json({0, 1}));
  EXPECT_EQ(std::get<Sample>(ours).crops.size(), 2 * transform_.crop_bytes());
}

}  // namespace
}  // namespace floe::data::corrected_rules_test
