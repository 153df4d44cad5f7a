// Small shards, and what a loader gives of them.
#pragma once

#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "floe/core/hash.h"
#include "floe/core/philox.h"
#include "floe/data/loader/loader.h"
#include "floe/data/python/base64.h"
#include "floe/data/sources/laion.h"
#include "floe/data/sources/mmc4.h"
#include "floe/data/sources/text.h"
#include "floe/image/image.h"
#include "floe/io/tar/tar.h"
#include "tests/data/goldens.h"
#include "tests/io/scratch.h"

namespace floe::data {

inline std::string as_string(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline image::Image noise_image(int width, int height, std::uint64_t seed) {
  image::Image picture{width, height,
                       std::vector<std::uint8_t>(static_cast<std::size_t>(width * height * 3))};
  const Philox random(seed);
  for (std::size_t i = 0; i < picture.rgb.size(); ++i)
    picture.rgb[i] = static_cast<std::uint8_t>(random.block(i / 4)[i % 4]);
  return picture;
}

struct TarFile {
  std::string name, bytes;
};

inline std::string tar_of(const std::vector<TarFile>& files) {
  std::string tar;
  TarWriter writer([&](std::span<const std::byte> bytes) { tar += as_string(bytes); });
  for (const TarFile& file : files) writer.add(file.name, std::as_bytes(std::span(file.bytes)));
  writer.finish();
  return tar;
}

// "s3-0007": sample 7 of shard 3.
inline std::string sample_key(int shard, int sample) {
  std::string number = std::to_string(sample);
  return "s" + std::to_string(shard) + "-" +
         std::string(4 - std::min<std::size_t>(4, number.size()), '0') + number;
}

// A picture that differs from sample to sample, and a caption that names it.
inline std::vector<TarFile> laion_files(int shard, int sample) {
  const std::string key = sample_key(shard, sample);
  const auto picture = noise_image(10, 8, hash64(key));
  return {{key + ".jpg", as_string(image::encode_jpeg(picture))},
          {key + ".txt", "a picture of " + key}};
}

inline std::string laion_shard(int shard, int samples) {
  std::vector<TarFile> files;
  for (int i = 0; i < samples; ++i)
    for (TarFile& file : laion_files(shard, i)) files.push_back(std::move(file));
  return tar_of(files);
}

// Documents with `images` pictures that match their sentences.
inline std::string mmc4_shard(int shard, int documents, int images = 2) {
  std::vector<TarFile> files;
  for (int i = 0; i < documents; ++i) {
    const std::string key = sample_key(shard, i);
    nlohmann::json document{{"text_list", nlohmann::json::array()},
                            {"image_info", nlohmann::json::array()},
                            {"similarity_matrix", nlohmann::json::array()}};
    // Every third document has one picture only, so that the coin decides about it.
    const int count = i % 3 == 0 ? 1 : images;
    for (int k = 0; k < count; ++k) {
      document["text_list"].push_back("sentence " + std::to_string(k) + " of " + key);
      const auto picture = noise_image(64, 64, hash64(key + std::to_string(k)));
      document["image_info"].push_back(
          {{"image_name", key}, {"image_base64", encode_base64(image::encode_png(picture))}});
      nlohmann::json row = nlohmann::json::array();
      for (int j = 0; j < count; ++j) row.push_back(j == k ? 0.9 : 0.1);
      document["similarity_matrix"].push_back(row);
    }
    files.push_back({key + ".json", document.dump()});
  }
  return tar_of(files);
}

// A folder of shards 0, 1, …; the pattern names them all.
struct Shards {
  test::Scratch folder;
  int count = 0;

  std::string pattern() const { return folder.path("{0.." + std::to_string(count - 1) + "}.tar"); }
  std::string path(int shard) const { return folder.path(std::to_string(shard) + ".tar"); }
  void add(const std::string& tar) { folder.write(std::to_string(count++) + ".tar", tar); }
};

inline std::unique_ptr<Shards> laion_shards(int count, int samples) {
  auto shards = std::make_unique<Shards>();
  for (int i = 0; i < count; ++i) shards->add(laion_shard(i, samples));
  return shards;
}

struct Reader {
  std::unique_ptr<token::Tokenizer> tokenizer;
  token::FlamingoTokens tokens;
};

inline const Reader& reader() {
  static const Reader made = [] {
    Reader reader{token::load_tokenizer(goldens_folder() + "tokenizers/neox"), {}};
    reader.tokens = token::add_flamingo_tokens(*reader.tokenizer);
    return reader;
  }();
  return made;
}

// Pictures of 8 by 8, so that thousands of them cost little.
inline LoaderContext context(std::int64_t rank = 0, std::int64_t world = 1,
                             std::uint64_t seed = 7) {
  LoaderContext context;
  context.rank = rank;
  context.world = world;
  context.seed = seed;
  context.tokenizer = reader().tokenizer.get();
  context.tokens = reader().tokens;
  context.transform.size = 8;
  return context;
}

inline DataConfig laion_config(const std::string& shards, std::int64_t batch_size) {
  DataConfig config;
  config.block<LaionConfig>().emplace();
  config.block<LaionConfig>()->shards = shards;
  config.block<LaionConfig>()->batch_size = batch_size;
  config.threads = 2;
  return config;
}

// Everything a model would see of a step, in one number.
inline std::uint64_t fingerprint(const Batch& step) {
  Hash64 hash;
  hash.add(static_cast<std::uint64_t>(step.epoch)).add(static_cast<std::uint64_t>(step.index));
  hash.add(step.ends_epoch ? 1 : 0);
  for (const SourceBatch& batch : step.sources) {
    hash.add(static_cast<std::uint64_t>(batch.source));
    for (const auto* numbers : {&batch.ids, &batch.labels, &batch.positions,
                                &batch.sequence_offsets, &batch.image_offsets})
      for (const std::int64_t number : *numbers) hash.add(static_cast<std::uint64_t>(number));
    for (const std::string& key : batch.keys) hash.add(key);
  }
  if (step.images)
    hash.add(std::string_view(reinterpret_cast<const char*>(step.images->data()),
                              static_cast<std::size_t>(step.shape.numel()) * sizeof(float)));
  return hash.value();
}

inline std::vector<std::uint64_t> fingerprints(Loader& loader, int steps) {
  std::vector<std::uint64_t> prints;
  for (int i = 0; i < steps; ++i) prints.push_back(fingerprint(loader.next()));
  return prints;
}

inline std::vector<std::string> keys_of(Loader& loader, int steps) {
  std::vector<std::string> keys;
  for (int i = 0; i < steps; ++i)
    for (const SourceBatch& batch : loader.next().sources)
      keys.insert(keys.end(), batch.keys.begin(), batch.keys.end());
  return keys;
}

}  // namespace floe::data
