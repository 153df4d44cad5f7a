#include "floe/checkpoint/folder/manifest.h"

#include <filesystem>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/utf8.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/schema/codec.h"

namespace floe::checkpoint {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostBytes = 1 << 30;
// Formats of a manifest: with the states of the ranks in it, or apart.
constexpr int kStatesInside = 1, kStatesApart = 2;

// A copy whose strings and keys went through `change`.
template <class F>
json with_strings(const json& content, const F& change) {
  if (content.is_string()) return change(content.get_ref<const std::string&>());
  if (!content.is_structured()) return content;
  json copy = content.is_array() ? json::array() : json::object();
  for (const auto& [key, item] : content.items())
    if (content.is_array())
      copy.push_back(with_strings(item, change));
    else
      copy[change(key)] = with_strings(item, change);
  return copy;
}

std::string last_line(const std::string& content) {
  return str("{\"crc32\":\"", hex_digits(crc32(content), 8), "\"}\n");
}

template <class E>
E named(const json& text, const std::string& path) {
  for (const auto& [name, value] : enum_names(E{}))
    if (text == std::string(name)) return value;
  throw CheckpointError(str("'", path, "' has the unknown word ", text.dump()));
}

// See Note [States of ranks].
RankStates states_in(const json& content, int world_size, const std::string& path) {
  const json& ranks = content.at("ranks");
  if (content.at("format") == kStatesInside) return RankStates(ranks.get<std::vector<json>>());
  return {std::filesystem::path(path).parent_path().string(), world_size,
          ranks.at("missing").get<std::set<int>>()};
}

std::optional<std::set<std::string>> names_in(const json& content, const char* key) {
  if (!content.contains(key) || content.at(key).is_null()) return std::nullopt;
  return content.at(key).get<std::set<std::string>>();
}

}  // namespace

json as_text(const json& content) {
  return with_strings(content, [](const std::string& bytes) { return bytes_to_text(bytes); });
}
json as_bytes(const json& text) {
  return with_strings(text, [](const std::string& chars) { return text_to_bytes(chars); });
}

std::string seal(const json& content) {
  const std::string line = as_text(content).dump() + "\n";
  return line + last_line(line);
}

void write_sealed(const std::string& path, const json& content) {
  write_file_atomically(path, seal(content));
}

json unseal(const std::string& bytes, const std::string& path) {
  const std::size_t end = bytes.find('\n');
  require<CheckpointError>(end != std::string::npos, "'", path, "' is cut off or damaged");
  const std::string line = bytes.substr(0, end + 1);
  require<CheckpointError>(bytes.substr(end + 1) == last_line(line), "'", path,
                           "' is damaged: its checksum does not fit its content");
  try {
    return as_bytes(parse_json(line, path));
  } catch (const DataError& e) {
    throw CheckpointError(e.what());
  }
}

std::string read_sealed_bytes(const std::string& path) {
  try {
    return read_text(path, kMostBytes);
  } catch (const DataError& e) {
    throw CheckpointError(e.what());
  }
}

json read_sealed(const std::string& path) { return unseal(read_sealed_bytes(path), path); }

json to_json(const Holdings& holdings) {
  json bases = json::array();
  for (const FrozenBase& base : holdings.bases)
    bases.push_back({{"path", base.path}, {"digest", base.digest}});
  json content{{"content", config::enum_name(holdings.content)}, {"bases", std::move(bases)}};
  if (holdings.kept) content["kept"] = *holdings.kept;
  if (holdings.trained) content["trained"] = *holdings.trained;
  if (!holdings.frozen.empty()) content["frozen"] = holdings.frozen;
  return content;
}

Holdings holdings_from_json(const json& content, const std::string& path) {
  Holdings holdings;
  holdings.content = named<Content>(content.at("content"), path);
  for (const json& base : content.at("bases"))
    holdings.bases.push_back({base.at("path"), base.at("digest")});
  holdings.kept = names_in(content, "kept");
  holdings.trained = names_in(content, "trained");
  holdings.frozen = names_in(content, "frozen").value_or(std::set<std::string>());
  return holdings;
}

std::string manifest_path(const std::string& checkpoint) {
  namespace fs = std::filesystem;
  if (fs::is_directory(checkpoint)) return str(checkpoint, "/", kManifestFile);
  // `last` may lead to a file, beside which the manifest lies.
  std::error_code ignored;
  const bool leads_to_file = fs::is_symlink(checkpoint, ignored) && fs::exists(checkpoint, ignored);
  return (leads_to_file ? fs::canonical(checkpoint).string() : checkpoint) + ".floe.json";
}

void write_manifest(const std::string& path, const Manifest& manifest) {
  json ranges = json::array();
  for (const CheckedRange& range : manifest.ranges)
    ranges.push_back({range.file, range.offset, range.length, range.crc});
  const RankStates& ranks = manifest.ranks;
  const bool apart = ranks.lie_apart();
  json content{{"format", apart ? kStatesApart : kStatesInside},
               {"step", manifest.step},
               {"world_size", manifest.world_size},
               {"layout", config::enum_name(manifest.layout)},
               {"emergency", manifest.emergency},
               {"model", manifest.model},
               {"sets", to_json(manifest.sets)},
               {"numbered", manifest.numbered},
               {"metrics", manifest.metrics},
               {"shared", manifest.shared},
               {"ranks", apart ? json{{"missing", ranks.missing()}} : json(ranks.all())},
               {"ranges", std::move(ranges)},
               {"file_bytes", manifest.file_bytes}};
  content.update(to_json(static_cast<const Holdings&>(manifest)));
  write_sealed(path, content);
}

Manifest read_manifest(const std::string& path) {
  const json content = read_sealed(path);
  return reading(path, [&] {
    const json& format = content.at("format");
    require<CheckpointError>(format == kStatesInside || format == kStatesApart, "'", path,
                             "' has format ", format.dump(), ", but this floe reads formats ",
                             kStatesInside, " and ", kStatesApart);
    Manifest manifest;
    manifest.step = content.at("step");
    manifest.world_size = content.at("world_size");
    manifest.ranks = states_in(content, manifest.world_size, path);
    require<CheckpointError>(
        manifest.world_size >= 1 && manifest.world_size == manifest.ranks.size(), "'", path,
        "' is of ", manifest.world_size, " ranks, but has the states of ", manifest.ranks.size());
    manifest.layout = named<Layout>(content.at("layout"), path);
    static_cast<Holdings&>(manifest) = holdings_from_json(content, path);
    manifest.emergency = content.at("emergency");
    manifest.model = content.at("model");
    manifest.sets = sets_from_json(content.value("sets", json::array()));
    content.value("numbered", json::object()).get_to(manifest.numbered);
    for (const auto& [name, value] : content.at("metrics").items())
      if (value.is_number()) manifest.metrics[name] = value;
    manifest.shared = content.at("shared");
    for (const json& range : content.at("ranges"))
      manifest.ranges.push_back({range.at(0), range.at(1), range.at(2), range.at(3), ""});
    content.at("file_bytes").get_to(manifest.file_bytes);
    return manifest;
  });
}

std::vector<CheckedRange> checked_ranges(const std::string& file, std::string_view bytes) {
  constexpr std::size_t kRange = 128 << 10;
  std::vector<CheckedRange> ranges;
  std::size_t at = 0;
  do {
    const std::string_view part = bytes.substr(at, kRange);
    ranges.push_back({file, static_cast<std::int64_t>(at), static_cast<std::int64_t>(part.size()),
                      crc32(part), ""});
    at += part.size();
  } while (at < bytes.size());
  return ranges;
}

}  // namespace floe::checkpoint
