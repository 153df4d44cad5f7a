// For the references in Python and bench/image.py:
//   image_tool isas                          the instruction sets of this machine, one per line
//   image_tool look LIST [ISA] [SIZE]        one JSON line per file named in LIST: what decode,
//                                            crop and normalise make of it, as SHA-256; FILE.rgb
//                                            is raw:
//                                            "WIDTH HEIGHT\n", then the bytes
//   image_tool jpeg|png FILE OUT             the decoded file, encoded anew
//   image_tool time FILE COUNT               CPU milliseconds per picture for each step
#include <time.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/image/image.h"
#include "floe/image/transform.h"

namespace floe::image {
namespace {

using nlohmann::json;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), "cannot read '", path, "'");
  return {std::istreambuf_iterator<char>(file), {}};
}

Image read_picture(const std::string& path) {
  const std::string bytes = read_file(path);
  if (!path.ends_with(".rgb")) return decode(std::as_bytes(std::span(bytes)));
  Image image;
  std::istringstream(bytes) >> image.width >> image.height;
  const std::size_t begin = bytes.find('\n') + 1;
  image.rgb.assign(bytes.begin() + static_cast<std::ptrdiff_t>(begin), bytes.end());
  return image;
}

template <class Item>
std::string sha256_of(const std::vector<Item>& items) {
  return sha256_hex(std::as_bytes(std::span(items)));
}

Isa isa_named(const std::string& name) {
  for (const Isa isa : {Isa::plain, Isa::avx2, Isa::vnni})
    if (name_of(isa) == name) return isa;
  throw ConfigError("there is no instruction set '" + name + "'");
}

void list_isas() {
  for (const Isa isa : {Isa::plain, Isa::avx2, Isa::vnni})
    if (is_supported(isa)) std::puts(std::string(name_of(isa)).c_str());
}

json look(const std::string& path, const Transform& transform) {
  try {
    const Image image = read_picture(path);
    std::vector<std::uint8_t> crop(transform.crop_bytes());
    transform.crop(image, crop.data());
    std::vector<float> tensor(crop.size()), flipped(crop.size());
    transform.normalise(crop.data(), tensor.data(), false);
    transform.normalise(crop.data(), flipped.data(), true);
    return {{"width", image.width},        {"height", image.height},
            {"rgb", sha256_of(image.rgb)}, {"crop", sha256_of(crop)},
            {"tensor", sha256_of(tensor)}, {"flipped", sha256_of(flipped)}};
  } catch (const DataError& error) {
    return {{"error", error.what()}};
  }
}

template <class Step>
double milliseconds(int count, Step step) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
  };
  step();
  const double begin = now();
  for (int i = 0; i < count; ++i) step();
  return (now() - begin) / count;
}

json time_steps(const std::string& path, int count) {
  const std::string bytes = read_file(path);
  Image image;
  json times;
  times["decode"] = milliseconds(count, [&] { decode(std::as_bytes(std::span(bytes)), image); });
  std::vector<std::uint8_t> crop;
  std::vector<float> tensor;
  for (const Isa isa : {Isa::plain, Isa::avx2, Isa::vnni}) {
    if (!is_supported(isa)) continue;
    const Transform transform({}, isa);
    crop.resize(transform.crop_bytes());
    tensor.resize(transform.crop_bytes());
    times["crop " + std::string(name_of(isa))] =
        milliseconds(count, [&] { transform.crop(image, crop.data()); });
    times["normalise"] =
        milliseconds(count, [&] { transform.normalise(crop.data(), tensor.data(), true); });
  }
  return times;
}

void write(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

void run(const std::vector<std::string>& words) {
  const std::string command = words.empty() ? "" : words[0];
  if (command == "isas" && words.size() == 1) return list_isas();
  if (command == "look" && words.size() >= 2) {
    TransformOptions options;
    if (words.size() > 3) options.size = std::stoi(words[3]);
    const Transform transform(options, words.size() > 2 ? isa_named(words[2]) : best_isa());
    std::ifstream list(words[1]);
    for (std::string path; std::getline(list, path);)
      std::puts(look(path, transform).dump().c_str());
    return;
  }
  if (command == "jpeg" && words.size() == 3)
    return write(words[2], encode_jpeg(read_picture(words[1])));
  if (command == "png" && words.size() == 3)
    return write(words[2], encode_png(read_picture(words[1])));
  if (command == "time" && words.size() == 3)
    return void(std::puts(time_steps(words[1], std::stoi(words[2])).dump().c_str()));
  throw ConfigError(
      "usage: image_tool isas | look LIST [ISA] [SIZE] | jpeg FILE OUT | "
      "png FILE OUT | time FILE COUNT");
}

}  // namespace
}  // namespace floe::image

int main(int argc, char** argv) {
  try {
    floe::image::run({argv + 1, argv + argc});
    return 0;
  } catch (const floe::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
