// The data and the untrained models of `./run demo`, in real formats: drawings with captions,
// pages with several drawings, plain text, a small language model and an image tower.
//   demo_data DESCRIPTIONS NEW-FOLDER     (descriptions: examples/demo)
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "floe/data/python/base64.h"
#include "floe/image/image.h"
#include "floe/io/tar/tar.h"
#include "floe/models/build.h"
#include "floe/models/weights/save.h"
#include "floe/nn/load.h"

using namespace floe;
using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::array kColours{"red", "green", "blue", "yellow", "white", "black"};
constexpr int kRgb[][3]{{220, 30, 30},  {30, 170, 50},   {40, 60, 220},
                        {240, 220, 40}, {245, 245, 245}, {15, 15, 15}};
constexpr std::array kShapes{"circle", "square", "triangle"};
// Captions alone would not teach the language model to tell colours and shapes apart.
constexpr std::array kFacts{"blood is red",       "grass is green",       "the sky is blue",
                            "the sun is yellow",  "snow is white",        "coal is black",
                            "a coin is a circle", "a window is a square", "a sail is a triangle"};

struct Drawing {
  std::string caption;
  std::vector<std::byte> jpeg;
};

Drawing draw(std::mt19937& random) {
  constexpr int kSize = 128;
  const std::size_t front = random() % kColours.size();
  const std::size_t back = (front + 1 + random() % (kColours.size() - 1)) % kColours.size();
  const std::size_t shape = random() % kShapes.size();
  const int radius = 44 + static_cast<int>(random() % 12);
  image::Image picture{kSize, kSize, {}};
  for (int y = 0; y < kSize; ++y)
    for (int x = 0; x < kSize; ++x) {
      const int dx = x - kSize / 2, dy = y - kSize / 2;
      const bool inside = shape == 0   ? dx * dx + dy * dy < radius * radius
                          : shape == 1 ? std::max(std::abs(dx), std::abs(dy)) < radius
                                       : dy < radius && 2 * std::abs(dx) < dy + radius;
      for (const int value : kRgb[inside ? front : back]) {
        const int noise = static_cast<int>(random() % 49) - 24;  // also keeps the file large enough
        picture.rgb.push_back(static_cast<std::uint8_t>(std::clamp(value + noise, 0, 255)));
      }
    }
  return {str("a ", kColours[front], " ", kShapes[shape], " on ", kColours[back]),
          image::encode_jpeg(picture, 96)};
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void write_tar(const fs::path& path, const std::function<void(TarWriter&)>& fill) {
  std::ofstream file(path, std::ios::binary);
  TarWriter tar([&](std::span<const std::byte> bytes) { file << text_of(bytes); });
  fill(tar);
  tar.finish();
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
  config.random_init = true;
  const auto made = [&] {
    models::BuiltModel built = models::build_model(config, 1);
    nn::materialize(*built.module, built.source.get(), 1, at::kCPU);
    return built;
  };
  config.type = models::ModelConfig::Type::causal_lm;
  const models::BuiltModel lm = made();
  models::save_language_model(*lm.model, config.lm, (folder / "lm").string(),
                              models::whole_parameters(*lm.module), {});
  config.type = models::ModelConfig::Type::flamingo;
  config.vision = (descriptions / "vision").string();
  const models::BuiltModel flamingo = made();
  models::save_vision(*flamingo.model, models::VisionNames::open_clip, (folder / "vision").string(),
                      models::whole_parameters(*flamingo.module), {});
}

void write_all(const fs::path& descriptions, const fs::path& folder) {
  std::mt19937 random(7);
  for (int shard = 0; shard < 4; ++shard) {
    write_pairs(folder / str("pairs-", shard, ".tar"), 200, random);
    write_pages(folder / str("pages-", shard, ".tar"), 50, random);
  }
  for (int shard = 0; shard < 2; ++shard) {
    write_pairs(folder / str("held-out-", shard, ".tar"), 24 - 8 * shard, random);
    std::ofstream text(folder / str("text-", shard, ".jsonl"));
    for (const char* fact : kFacts)
      for (int i = 0; i < 56; ++i)
        text << json{{"text", fact}} << "\n" << json{{"text", draw(random).caption}} << "\n";
  }
  const Drawing drawing = draw(random);
  std::ofstream(folder / "drawing.jpg", std::ios::binary) << text_of(drawing.jpeg);
  std::ofstream(folder / "drawing.txt") << drawing.caption << "\n";
  write_models(descriptions, folder);
}

int main(int argc, char** argv) try {
  if (argc == 3 && fs::create_directories(argv[2])) return write_all(argv[1], argv[2]), 0;
  std::cerr << "usage: demo_data DESCRIPTIONS NEW-FOLDER\n";
  return 2;
} catch (const std::exception& error) {
  std::cerr << "demo_data: " << error.what() << "\n";
  return 1;
}
