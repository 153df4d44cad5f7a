// The pictures of the LAION corpus, from the shard to the tensor, against what OpenFlamingo's
// pipeline gave: sizes and SHA-256 of the decoded bytes, the crop and the tensor.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/image/transform.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/tar/tar.h"

namespace floe::image::image_golden_test {
namespace {

using nlohmann::json;

std::string data_dir() {
  return std::string(std::getenv("FLOE_SOURCE_DIR")) + "/tests/goldens/data";
}

json read_golden(const std::string& name) {
  std::ifstream file(data_dir() + "/golden/" + name);
  EXPECT_TRUE(file.good()) << name;
  return json::parse(file);
}

// By name, with the suffix in lower case.
std::map<std::string, std::vector<std::byte>> read_shard(const std::string& path) {
  std::map<std::string, std::vector<std::byte>> files;
  TarReader reader(path);
  for (TarEntry entry; reader.next(entry);) {
    for (std::size_t i = entry.name.rfind('.'); i < entry.name.size(); ++i)
      entry.name[i] = static_cast<char>(std::tolower(entry.name[i]));
    files[entry.name] = entry.data;
  }
  return files;
}

template <class Item>
std::string sha256_of(const std::vector<Item>& items) {
  return sha256_hex(std::as_bytes(std::span(items)));
}

TEST(Golden, EveryPictureOfLaion) {
  const Transform transform;
  std::string shard;
  std::map<std::string, std::vector<std::byte>> files;
  int kept = 0, refused = 0;
  const json golden = read_golden("laion_samples.json");
  for (const json& sample : golden["samples"]) {
    if (sample["shard"] != shard) {
      shard = sample["shard"];
      files = read_shard(data_dir() + "/corpus/laion/" + shard);
    }
    SCOPED_TRACE(sample.value("case", "") + " " + std::string(sample["key"]));
    if (sample["status"] == "kept") {
      const std::string name =
          str(std::string(sample["key"]), ".", std::string(sample["image_field"]));
      ASSERT_TRUE(files.contains(name));
      const Image image = decode(files.at(name));
      EXPECT_EQ(nlohmann::json(image.width), sample["width"]);
      EXPECT_EQ(nlohmann::json(image.height), sample["height"]);
      EXPECT_EQ(nlohmann::json(sha256_of(image.rgb)), sample["rgb_sha256"]);
      std::vector<std::uint8_t> crop(transform.crop_bytes());
      transform.crop(image, crop.data());
      EXPECT_EQ(nlohmann::json(sha256_of(crop)), sample["crop_u8_sha256"]);
      std::vector<float> tensor(crop.size());
      transform.normalise(crop.data(), tensor.data(), false);
      EXPECT_EQ(nlohmann::json(sha256_of(tensor)), sample["tensor_f32_sha256"]);
      ++kept;
    } else if (sample.value("error", "").find("image file") != std::string::npos) {
      const bool bad_png = sample["case"] == "good_jpg_broken_png";
      const std::string name = std::string(sample["key"]) + (bad_png ? ".png" : ".jpg");
      ASSERT_TRUE(files.contains(name));
      EXPECT_THROW(decode(files.at(name)), DataError);
      ++refused;
    }
  }
  EXPECT_EQ(kept + 6,
            static_cast<int>(golden["samples"].size()) - refused);  // 6: text, not picture
  EXPECT_EQ(refused, 8);
}

TEST(Golden, WholeCropsAndTensors) {
  const SafetensorsFile crops(data_dir() + "/golden/crops_u8_hwc.safetensors");
  const SafetensorsFile tensors(data_dir() + "/golden/tensors_f32_chw.safetensors");
  std::map<std::string, std::vector<std::byte>> files;
  const json golden = read_golden("laion_samples.json");
  for (const json& shard : golden["shards"])
    files.merge(read_shard(data_dir() + "/corpus/laion/" + std::string(shard)));
  const auto picture = [&](const std::string& key) {
    for (const char* suffix : {".jpg", ".png", ".jpeg"})
      if (const auto found = files.find(key + suffix); found != files.end())
        return decode(found->second);
    throw Error("no picture " + key);
  };
  const Transform transform;
  std::vector<std::uint8_t> crop(transform.crop_bytes());
  const auto bytes_of = [](const TensorSource& source, const std::string& name) {
    const TensorInfo& info = source.get(name);
    std::vector<std::byte> bytes(static_cast<std::size_t>(info.bytes()));
    source.read(info, 0, info.numel(), bytes);
    return bytes;
  };
  ASSERT_FALSE(crops.names().empty());
  for (const std::string& name : crops.names()) {
    transform.crop(picture(name.substr(name.find('/') + 1)), crop.data());
    const auto expected = bytes_of(crops, name);
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(crop)), expected)) << name;
  }
  ASSERT_FALSE(tensors.names().empty());
  for (const std::string& name : tensors.names()) {
    transform.crop(picture(name.substr(name.find('/') + 1)), crop.data());
    std::vector<float> tensor(crop.size()), flipped(crop.size());
    transform.normalise(crop.data(), tensor.data(), false);
    const auto expected = bytes_of(tensors, name);
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(tensor)), expected)) << name;
    transform.normalise(crop.data(), flipped.data(), true);
    const int size = transform.size();
    for (int row = 0; row < 3 * size; ++row)
      ASSERT_TRUE(std::equal(tensor.begin() + row * size, tensor.begin() + (row + 1) * size,
                             std::reverse_iterator(flipped.begin() + (row + 1) * size)))
          << name << " row " << row;
  }
}

}  // namespace
}  // namespace floe::image::image_golden_test
