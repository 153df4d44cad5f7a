// For test_tar_reference.py:
//   tar_tool list PLACE...    one JSON line per member: name (as hexadecimal), size, SHA-256,
//                             position; then {"end": null or what went wrong} for each place
//   tar_tool write OUT        members from standard input, lines "NAME FILE" (NAME as hexadecimal)
//   tar_tool time PATH COUNT  CPU milliseconds to read the archive once
#include <time.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/io/tar/tar.h"

namespace floe {
namespace {

std::string hex_of(const std::string& text) {
  std::string hex;
  for (const char c : text)
    for (const int shift : {4, 0})
      hex += "0123456789abcdef"[static_cast<unsigned char>(c) >> shift & 15];
  return hex;
}

std::string from_hex(const std::string& hex) {
  std::string text;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    text += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return text;
}

void list(const std::string& place) {
  nlohmann::json end;
  try {
    TarReader reader(place);
    for (TarEntry entry; reader.next(entry);)
      std::puts(nlohmann::json{{"name", hex_of(entry.name)},
                               {"size", entry.data.size()},
                               {"sha256", sha256_hex(entry.data)},
                               {"position", reader.position()}}
                    .dump()
                    .c_str());
  } catch (const DataError& error) {
    end = error.what();
  }
  std::puts(nlohmann::json{{"end", end}}.dump().c_str());
}

void write(const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  TarWriter tar([&](std::span<const std::byte> bytes) {
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  });
  for (std::string name, path_in; std::cin >> name >> path_in;) {
    std::ifstream file(path_in, std::ios::binary);
    const std::string data{std::istreambuf_iterator<char>(file), {}};
    tar.add(from_hex(name), std::as_bytes(std::span(data)));
  }
  tar.finish();
}

double milliseconds_to_read(const std::string& path, int count) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
  };
  const double begin = now();
  TarEntry entry;
  for (int i = 0; i < count; ++i) {
    TarReader reader(path);
    while (reader.next(entry)) {
    }
  }
  return (now() - begin) / count;
}

}  // namespace
}  // namespace floe

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() >= 2 && words[0] == "list") {
      for (std::size_t i = 1; i < words.size(); ++i) floe::list(words[i]);
    } else if (words.size() == 2 && words[0] == "write") {
      floe::write(words[1]);
    } else if (words.size() == 3 && words[0] == "time") {
      std::printf("%.4f\n", floe::milliseconds_to_read(words[1], std::stoi(words[2])));
    } else {
      throw floe::ConfigError("usage: tar_tool list PLACE... | write OUT | time PATH COUNT");
    }
    return 0;
  } catch (const floe::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
