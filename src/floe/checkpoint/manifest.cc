#include "floe/checkpoint/manifest.h"

#include <filesystem>

#include "floe/checkpoint/sealed_json.h"
#include "floe/config/codec.h"
#include "floe/core/error.h"
#include "floe/io/crc32.h"
#include "floe/io/file.h"

namespace floe::checkpoint {
namespace {

using nlohmann::json;

template <class E>
std::string_view name_in_file(E wanted) {
  for (const auto& [name, value] : enum_names(E{}))
    if (value == wanted) return name;
  return "";
}

template <class E>
E named(const json& text, const std::string& path) {
  for (const auto& [name, value] : enum_names(E{}))
    if (text == std::string(name)) return value;
  throw CheckpointError(str("'", path, "' has the unknown word ", text.dump()));
}

}  // namespace

std::string manifest_path(const std::string& checkpoint) {
  return std::filesystem::is_directory(checkpoint) ? str(checkpoint, "/", kManifestFile)
                                                   : checkpoint + ".floe.json";
}

void write_manifest(const std::string& path, const Manifest& manifest) {
  json bases = json::array(), ranges = json::array();
  for (const FrozenBase& base : manifest.bases)
    bases.push_back({{"path", base.path}, {"digest", base.digest}});
  for (const CheckedRange& range : manifest.ranges)
    ranges.push_back({range.file, range.offset, range.length, range.crc});
  write_sealed(path, {{"format", 1},
                      {"step", manifest.step},
                      {"world_size", manifest.world_size},
                      {"layout", name_in_file(manifest.layout)},
                      {"content", name_in_file(manifest.content)},
                      {"emergency", manifest.emergency},
                      {"model", manifest.model},
                      {"bases", std::move(bases)},
                      {"sets", to_json(manifest.sets)},
                      {"metrics", manifest.metrics},
                      {"shared", manifest.shared},
                      {"ranks", manifest.ranks},
                      {"ranges", std::move(ranges)},
                      {"file_bytes", manifest.file_bytes}});
}

Manifest read_manifest(const std::string& path) {
  const json content = read_sealed(path);
  return reading(path, [&] {
    require<CheckpointError>(content.at("format") == 1, "'", path, "' has format ",
                             content.at("format").dump(), ", but this floe reads format 1");
    Manifest manifest;
    manifest.step = content.at("step");
    manifest.world_size = content.at("world_size");
    require<CheckpointError>(
        manifest.world_size >= 1 &&
            manifest.world_size == static_cast<int>(content.at("ranks").size()),
        "'", path, "' is of ", manifest.world_size, " ranks, but has the states of ",
        content.at("ranks").size());
    manifest.layout = named<Layout>(content.at("layout"), path);
    manifest.content = named<Content>(content.at("content"), path);
    manifest.emergency = content.at("emergency");
    manifest.model = content.at("model");
    for (const json& base : content.at("bases"))
      manifest.bases.push_back({base.at("path"), base.at("digest")});
    manifest.sets = sets_from_json(content.value("sets", json::array()));
    for (const auto& [name, value] : content.at("metrics").items())
      if (value.is_number()) manifest.metrics[name] = value;
    manifest.shared = content.at("shared");
    for (const json& rank : content.at("ranks")) manifest.ranks.push_back(rank);
    for (const json& range : content.at("ranges"))
      manifest.ranges.push_back({range.at(0), range.at(1), range.at(2), range.at(3), ""});
    content.at("file_bytes").get_to(manifest.file_bytes);
    return manifest;
  });
}

CheckedRange checked_file(const std::string& folder, const std::string& file) {
  const File opened(str(folder, "/", file));
  CheckedRange range{file, 0, opened.size(), 0, ""};
  std::vector<std::byte> block(1 << 20);
  for (std::int64_t at = 0; at < range.length;) {
    const auto size =
        std::min<std::int64_t>(range.length - at, static_cast<std::int64_t>(block.size()));
    const auto part = std::span(block).first(static_cast<std::size_t>(size));
    opened.read_at(at, part);
    range.crc = crc32(part, range.crc);
    at += size;
  }
  return range;
}

}  // namespace floe::checkpoint
