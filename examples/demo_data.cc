// The data and the untrained models of `./run demo`: drawings of coloured shapes with captions, the same
// captions as plain text, pages with several drawings, a small language model and an image tower.
// Everything in the formats of the real world, so that the demo takes the way a real run takes.
//
//   demo_data DESCRIPTIONS FOLDER     (descriptions: examples/demo)
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "floe/data/base64.h"
#include "floe/image/encode.h"
#include "floe/image/image.h"
#include "floe/io/tar_writer.h"
#include "floe/models/build.h"
#include "floe/models/save.h"
#include "floe/nn/load.h"

using namespace floe;
using nlohmann::json;
namespace fs = std::filesystem;

struct Colour {
  const char* name;
  std::array<std::uint8_t, 3> rgb;
};
constexpr std::array<Colour, 6> kColours{{{"red", {220, 30, 30}},
                                          {"green", {30, 170, 50}},
                                          {"blue", {40, 60, 220}},
                                          {"yellow", {240, 220, 40}},
                                          {"white", {245, 245, 245}},
                                          {"black", {15, 15, 15}}}};
constexpr std::array kShapes{"circle", "square", "triangle"};

struct Drawing {
  std::string caption;
  std::vector<std::byte> jpeg;
};

Drawing draw(std::mt19937& random) {
  constexpr int kSize = 128;
  const std::size_t front = random() % kColours.size();
  const std::size_t back = (front + 1 + random() % (kColours.size() - 1)) % kColours.size();
  const std::size_t shape = random() % kShapes.size();
  const int radius = 30 + static_cast<int>(random() % 20);
  image::Image picture{kSize, kSize, std::vector<std::uint8_t>(3 * kSize * kSize)};
  for (int y = 0; y < kSize; ++y)
    for (int x = 0; x < kSize; ++x) {
      const int dx = x - kSize / 2, dy = y - kSize / 2;
      const bool inside = shape == 0   ? dx * dx + dy * dy < radius * radius
                          : shape == 1 ? std::max(std::abs(dx), std::abs(dy)) < radius
                                       : dy < radius && 2 * std::abs(dx) < dy + radius;
      for (int c = 0; c < 3; ++c) {
        const int noise = static_cast<int>(random() % 49) - 24;  // also keeps the file large enough
        const int value = kColours[inside ? front : back].rgb[static_cast<std::size_t>(c)] + noise;
        picture.rgb[static_cast<std::size_t>(3 * (y * kSize + x) + c)] =
            static_cast<std::uint8_t>(std::clamp(value, 0, 255));
      }
    }
  return {str("a ", kColours[front].name, " ", kShapes[shape], " on ", kColours[back].name),
          image::encode_jpeg(picture, 96)};
}

void write_tar(const fs::path& path, const std::function<void(TarWriter&)>& fill) {
  std::ofstream file(path, std::ios::binary);
  TarWriter tar([&](std::span<const std::byte> bytes) {
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  });
  fill(tar);
  tar.finish();
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Pairs of a picture and its caption, as LAION has them.
void write_pairs(const fs::path& path, int count, std::mt19937& random) {
  write_tar(path, [&](TarWriter& tar) {
    for (int i = 0; i < count; ++i) {
      const Drawing drawing = draw(random);
      tar.add(str("pair", i, ".jpg"), drawing.jpeg);
      tar.add(str("pair", i, ".txt"), bytes_of(drawing.caption));
    }
  });
}

// Pages with three pictures, as MMC4 has them.
void write_pages(const fs::path& path, int count, std::mt19937& random) {
  write_tar(path, [&](TarWriter& tar) {
    for (int i = 0; i < count; ++i) {
      json page{{"text_list", json::array()}, {"image_info", json::array()}};
      for (int k = 0; k < 3; ++k) {
        const Drawing drawing = draw(random);
        page["text_list"].push_back((k == 0 ? "This is " : "Next comes ") + drawing.caption);
        page["image_info"].push_back({{"image_base64", data::encode_base64(drawing.jpeg)}});
        page["similarity_matrix"].push_back(
            {k == 0 ? 0.4 : 0.1, k == 1 ? 0.4 : 0.1, k == 2 ? 0.4 : 0.1});
      }
      tar.add(str("page", i, ".json"), bytes_of(page.dump()));
    }
  });
}

// An untrained language model and image tower, as Hugging Face and open_clip have them.
void write_models(const fs::path& descriptions, const fs::path& folder) {
  models::ModelConfig config;
  config.lm = (descriptions / "lm").string();
  config.vision = (descriptions / "vision").string();
  config.random_init = true;
  const models::BuiltModel built = models::build_model(config, 1);
  nn::materialize(*built.module, built.source.get(), 1, at::kCPU);
  const auto parameters = built.module->named_parameters();
  const auto whole = [&](const std::string& name) { return parameters[name].detach(); };
  models::save_vision(*built.model, models::VisionNames::open_clip, (folder / "vision").string(),
                      whole, {});

  config.type = models::ModelConfig::Type::causal_lm;
  config.vision.clear();
  const models::BuiltModel lm = models::build_model(config, 1);
  nn::materialize(*lm.module, lm.source.get(), 1, at::kCPU);
  const auto lm_parameters = lm.module->named_parameters();
  models::save_language_model(*lm.model, config.lm, (folder / "lm").string(),
                              [&](const std::string& name) { return lm_parameters[name].detach(); },
                              {});
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: demo_data DESCRIPTIONS FOLDER\n";
    return 2;
  }
  try {
    const fs::path folder = argv[2];
    fs::create_directories(folder);
    std::mt19937 random(7);
    for (int shard = 0; shard < 4; ++shard) {
      write_pairs(folder / str("pairs-", shard, ".tar"), 200, random);
      write_pages(folder / str("pages-", shard, ".tar"), 50, random);
    }
    write_pairs(folder / "held-out-0.tar", 24, random);
    write_pairs(folder / "held-out-1.tar", 16, random);
    for (int shard = 0; shard < 2; ++shard) {
      std::ofstream text(folder / str("captions-", shard, ".jsonl"));
      for (int i = 0; i < 500; ++i) text << json{{"text", draw(random).caption}}.dump() << "\n";
    }
    const Drawing drawing = draw(random);
    std::ofstream(folder / "drawing.jpg", std::ios::binary)
        .write(reinterpret_cast<const char*>(drawing.jpeg.data()),
               static_cast<std::streamsize>(drawing.jpeg.size()));
    std::ofstream(folder / "drawing.txt") << drawing.caption << "\n";
    write_models(argv[1], folder);
  } catch (const std::exception& error) {
    std::cerr << "demo_data: " << error.what() << "\n";
    return 1;
  }
}
