// floe's part of bench/data.py: how fast the loader is, and how fast its JPEG files can be decoded
// at all. Usage: bench_data CONFIG.json, which has
//   kind: "loader" | "decode", source: "laion" | "mmc4", shards, tokenizer, batch_size, threads,
//   warmup and samples (of the loader), images (of decode)
// Prints one JSON line: samples, images, wall_s, cpu_s.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

// It needs what <cstdio> declares.
#include <jpeglib.h>

#include "floe/core/log.h"
#include "floe/data/loader/loader.h"
#include "floe/data/python/base64.h"
#include "floe/data/shards/shard_list.h"
#include "floe/data/sources/laion.h"
#include "floe/data/sources/mmc4.h"
#include "floe/io/tar/tar.h"
#include "floe/packing/packing.h"

namespace floe::data {
namespace {

using nlohmann::json;

// Wall clock and processor time, all threads.
struct Clock {
  std::chrono::steady_clock::time_point wall = std::chrono::steady_clock::now();
  double cpu = cpu_seconds();

  static double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  json since() const {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - wall;
    return {{"wall_s", elapsed.count()}, {"cpu_s", cpu_seconds() - cpu}};
  }
};

json run_loader(const json& asked) {
  auto tokenizer = token::load_tokenizer(asked.at("tokenizer"));
  LoaderContext context;
  context.tokens = token::add_flamingo_tokens(*tokenizer);
  context.tokenizer = tokenizer.get();
  DataConfig config;
  config.threads = asked.at("threads");
  if (asked.at("source") == "laion") {
    config.block<LaionConfig>().emplace();
    config.block<LaionConfig>()->shards = asked.at("shards");
    config.block<LaionConfig>()->batch_size = asked.at("batch_size");
  } else {
    config.block<Mmc4Config>().emplace();
    config.block<Mmc4Config>()->shards = asked.at("shards");
    config.block<Mmc4Config>()->batch_size = asked.at("batch_size");
  }
  Loader loader(config, context);
  std::int64_t samples = 0, images = 0;
  const auto take = [&](std::int64_t until) {
    while (samples < until) {
      const PackedBatch batch = packing::pack(loader.next());
      samples += batch.num_sequences();
      images += batch.num_images();
    }
  };
  take(asked.at("warmup"));
  samples = images = 0;
  const Clock clock;
  take(asked.at("samples"));
  json result = clock.since();
  result["samples"] = samples;
  result["images"] = images;
  return result;
}

// Every JPEG of the shards.
std::vector<Bytes> jpegs_of(const json& asked) {
  std::vector<Bytes> files;
  for (const std::string& shard : expand_shards(asked.at("shards").get<std::string>())) {
    TarReader reader(shard);
    TarEntry entry;
    while (reader.next(entry)) {
      if (entry.name.ends_with(".jpg")) files.push_back(entry.data);
      if (!entry.name.ends_with(".json") || asked.at("source") != "mmc4") continue;
      const auto* text = reinterpret_cast<const char*>(entry.data.data());
      const json document = json::parse(text, text + entry.data.size());
      for (const json& info : document.at("image_info"))
        files.push_back(decode_base64(info.at("image_base64").get<std::string>()));
    }
  }
  return files;
}

// libjpeg-turbo alone, as it is called by default: the whole picture to RGB.
std::size_t decode(const Bytes& file, std::vector<unsigned char>& row) {
  jpeg_error_mgr errors;
  jpeg_decompress_struct jpeg;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&jpeg, TRUE);
  jpeg.out_color_space = JCS_RGB;
  jpeg_start_decompress(&jpeg);
  const std::size_t stride = std::size_t{3} * jpeg.output_width;
  row.resize(stride * jpeg.output_height);
  while (jpeg.output_scanline < jpeg.output_height) {
    unsigned char* at = row.data() + stride * jpeg.output_scanline;
    jpeg_read_scanlines(&jpeg, &at, 1);
  }
  jpeg_finish_decompress(&jpeg);
  jpeg_destroy_decompress(&jpeg);
  return row.size();
}

json run_decode(const json& asked) {
  const std::vector<Bytes> files = jpegs_of(asked);
  require<DataError>(!files.empty(), "there is no JPEG in ", asked.at("shards").get<std::string>());
  std::vector<unsigned char> pixels;
  for (const Bytes& file : files) decode(file, pixels);
  const std::int64_t images = asked.at("images");
  std::size_t bytes = 0;
  const Clock clock;
  for (std::int64_t i = 0; i < images; ++i)
    bytes += decode(files[static_cast<std::size_t>(i) % files.size()], pixels);
  json result = clock.since();
  result["images"] = images;
  result["pixel_bytes"] = bytes;
  return result;
}

}  // namespace
}  // namespace floe::data

int main(int argc, char** argv) {
  try {
    floe::require<floe::ConfigError>(argc == 2, "usage: bench_data CONFIG.json");
    std::ifstream file(argv[1]);
    const auto asked = nlohmann::json::parse(file);
    const auto result = asked.at("kind") == "decode" ? floe::data::run_decode(asked)
                                                     : floe::data::run_loader(asked);
    std::cout << result.dump() << std::endl;
    return 0;
  } catch (const std::exception& error) {
    floe::log::error("bench_data: ", error.what());
    return 1;
  }
}
