#include "floe/checkpoint/save/rank_files.h"

#include <utility>

#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/save/commit_point.h"
#include "floe/core/error.h"
#include "floe/io/dcp/dcp.h"

namespace floe::checkpoint {
namespace {

using nlohmann::json;

constexpr int kMostRanks = 1 << 20;

std::span<const std::byte> bytes_of(const at::Tensor& values, std::int64_t first,
                                    std::int64_t count) {
  const auto size = static_cast<std::int64_t>(values.element_size());
  const auto* data = static_cast<const std::byte*>(values.const_data_ptr());
  return {data + first * size, static_cast<std::size_t>(count * size)};
}

json path_as_json(const pickle::Value& path) {
  json items = json::array();
  for (const pickle::Value& item : path.items())
    if (item.is(pickle::Kind::integer))
      items.push_back(item.integer());
    else
      items.push_back(item.text());
  return items;
}

// Sizes that a tensor can have, and chunks of as many dimensions.
void check_shape(const RankTensor& tensor, const std::string& path) {
  std::int64_t numel = 1;
  for (const std::int64_t size : tensor.shape)
    require<CheckpointError>(size >= 0 && !__builtin_mul_overflow(numel, size, &numel), "'", path,
                             "' has a tensor of the impossible shape [", join(tensor.shape), "]");
  for (const RankChunk& chunk : tensor.chunks)
    require<CheckpointError>(
        chunk.offsets.size() == tensor.shape.size() && chunk.sizes.size() == tensor.shape.size(),
        "'", path, "' has a chunk of ", chunk.sizes.size(), " dimensions in a tensor of ",
        tensor.shape.size());
}

}  // namespace

std::string data_file(int rank) { return str("__", rank, "_0.distcp"); }
std::string manifest_file(int rank) { return str("floe_rank_", rank, ".json"); }

void write_rank_files(const std::string& folder, const RankHeader& header,
                      const std::vector<StateTensor>& tensors,
                      const std::vector<StateObject>& objects) {
  DcpFileWriter file(str(folder, "/", data_file(header.rank)));
  json written_objects = json::array(), written_tensors = json::array();
  for (const StateObject& object : objects) {
    const auto written = file.add_object(object.value);
    written_objects.push_back({{"name", object.name},
                               {"path", path_as_json(object.path)},
                               {"at", {written.offset, written.length, written.crc}}});
  }
  for (const StateTensor& tensor : tensors) {
    json chunks = json::array();
    for (const StatePiece& piece : tensor.pieces) {
      std::int64_t done = 0;
      for (const Rectangle& box : rectangles_of(tensor.shape, piece.first, piece.values.numel())) {
        const auto written =
            file.add_tensor(tensor.dtype, box.sizes, bytes_of(piece.values, done, box.numel()));
        done += box.numel();
        chunks.push_back({{"offsets", box.offsets},
                          {"sizes", box.sizes},
                          {"at", {written.offset, written.length, written.crc}}});
        commit_point("writing");
      }
    }
    written_tensors.push_back({{"path", tensor.path},
                               {"other_names", tensor.other_names},
                               {"shape", tensor.shape},
                               {"dtype", name_of(tensor.dtype)},
                               {"chunks", std::move(chunks)}});
    if (!tensor.rest_of.empty()) written_tensors.back()["rest_of"] = tensor.rest_of;
  }
  file.finish();
  commit_point("data written");
  write_sealed(str(folder, "/", manifest_file(header.rank)),
               {{"format", 1},
                {"step", header.step},
                {"rank", header.rank},
                {"world_size", header.world_size},
                {"run", header.run},
                {"model", header.model},
                {"state", header.state},
                {"shared", header.shared},
                {"sets", to_json(header.sets)},
                {"holdings", header.holdings},
                {"file_bytes", file.bytes()},
                {"tensors", std::move(written_tensors)},
                {"objects", std::move(written_objects)}});
}

RankManifest read_rank_manifest(const std::string& folder, int rank) {
  const std::string path = str(folder, "/", manifest_file(rank));
  const std::string bytes = read_sealed_bytes(path);
  const json content = unseal(bytes, path);
  return reading(path, [&] {
    RankManifest manifest;
    manifest.file = {manifest_file(rank), 0, static_cast<std::int64_t>(bytes.size()), crc32(bytes),
                     ""};
    RankHeader& header = manifest.header;
    require<CheckpointError>(content.at("format") == 1, "'", path, "' has format ",
                             content.at("format").dump(), ", but this floe reads format 1");
    header.step = content.at("step");
    header.rank = content.at("rank");
    header.world_size = content.at("world_size");
    header.run = content.at("run");
    header.model = content.at("model");
    header.state = content.at("state");
    header.shared = content.at("shared");
    header.sets = sets_from_json(content.value("sets", json::array()));
    header.holdings = content.value("holdings", json());
    require<CheckpointError>(
        header.rank == rank && rank < header.world_size && header.world_size <= kMostRanks, "'",
        path, "' is of rank ", header.rank, " of ", header.world_size);
    manifest.file_bytes = content.at("file_bytes");
    for (const json& entry : content.at("tensors")) {
      RankTensor& tensor = manifest.tensors.emplace_back();
      entry.at("path").get_to(tensor.path);
      entry.at("other_names").get_to(tensor.other_names);
      entry.at("shape").get_to(tensor.shape);
      const auto dtype = dtype_from_name(entry.at("dtype").get<std::string>());
      require<CheckpointError>(dtype.has_value(), "'", path, "' has a tensor of an unknown dtype");
      tensor.dtype = *dtype;
      tensor.rest_of = entry.value("rest_of", "");
      for (const json& part : entry.at("chunks")) {
        RankChunk& chunk = tensor.chunks.emplace_back();
        part.at("offsets").get_to(chunk.offsets);
        part.at("sizes").get_to(chunk.sizes);
        chunk.offset = part.at("at").at(0);
        chunk.length = part.at("at").at(1);
        chunk.crc = part.at("at").at(2);
      }
      check_shape(tensor, path);
    }
    for (const json& entry : content.at("objects"))
      manifest.objects.push_back({entry.at("name"), entry.at("path"), entry.at("at").at(0),
                                  entry.at("at").at(1), entry.at("at").at(2)});
    return manifest;
  });
}

}  // namespace floe::checkpoint
