// Samples made on the spot: pictures of noise, and documents around them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/core/error.h"
#include "floe/data/python/base64.h"
#include "floe/data/python/random.h"
#include "floe/data/sample.h"
#include "floe/image/image.h"

namespace floe::data {

// A JPEG of noise; 200 x 160 has well over 11 000 bytes.
inline Bytes noise_jpeg(std::uint64_t seed, int width = 200, int height = 160) {
  PythonRandom random(seed);
  image::Image image{width, height, {}};
  for (int i = 0; i < 3 * width * height; ++i)
    image.rgb.push_back(static_cast<std::uint8_t>(random.bits(8)));
  return image::encode_jpeg(image);
}

inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline RawSample document_sample(const nlohmann::json& document, const std::string& key = "doc") {
  return {"shard.tar", key, {{"json", bytes_of(document.dump())}}};
}

// Pictures 0, 1, … of noise, each similar to one sentence (0.9; all others 0.1).
inline nlohmann::json page(const std::vector<std::string>& sentences,
                           const std::vector<std::size_t>& sentence_of_picture) {
  nlohmann::json document;
  document["text_list"] = sentences;
  document["image_info"] = nlohmann::json::array();
  document["similarity_matrix"] = nlohmann::json::array();
  for (std::size_t i = 0; i < sentence_of_picture.size(); ++i) {
    document["image_info"].push_back({{"image_base64", encode_base64(noise_jpeg(i))}});
    std::vector<double> row(sentences.size(), 0.1);
    row[sentence_of_picture[i]] = 0.9;
    document["similarity_matrix"].push_back(row);
  }
  return document;
}

inline std::string mention(std::size_t number) { return str("_!_IMAGE", number, "_!_"); }

// A ChatGPT document with pictures 1, 2, ….
inline nlohmann::json chat(const std::string& text, std::size_t num_pictures) {
  nlohmann::json document{{"is_gpt", true}, {"example", text}};
  document["image_map"] = nlohmann::json::object();
  for (std::size_t i = 1; i <= num_pictures; ++i)
    document["image_map"][mention(i)] = {{"base64_image", encode_base64(noise_jpeg(i, 40, 40))}};
  return document;
}

}  // namespace floe::data
