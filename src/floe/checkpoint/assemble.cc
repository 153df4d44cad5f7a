#include "floe/checkpoint/assemble.h"

#include <map>
#include <set>
#include <utility>

#include "floe/checkpoint/folders.h"
#include "floe/checkpoint/json_pickle.h"
#include "floe/checkpoint/stop_point.h"
#include "floe/core/error.h"
#include "floe/io/atomic_file.h"
#include "floe/io/crc32.h"
#include "floe/io/dcp_metadata_writer.h"
#include "floe/io/torch_file_writer.h"

namespace floe::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kMetaFile = "meta.pt";

pickle::Value path_value(const json& path) {
  pickle::Items items;
  for (const json& step : path) items.push_back(to_pickle(step));
  return pickle::tuple(std::move(items));
}

void add_tensors(DcpMetadata& metadata, const RankManifest& rank, std::size_t file) {
  for (const RankTensor& part : rank.tensors) {
    const std::string name = join(part.path, ".");
    const auto [found, is_new] = metadata.tensors.try_emplace(name);
    DcpTensor& tensor = found->second;
    if (is_new) {
      tensor.shape = part.shape;
      tensor.dtype = part.dtype;
      metadata.paths[name] = path_value(part.path);
    }
    require<CheckpointError>(tensor.shape == part.shape && tensor.dtype == part.dtype,
                             "the ranks disagree about the shape or type of '", name, "'");
    for (const RankChunk& chunk : part.chunks)
      tensor.chunks.push_back({chunk.offsets, chunk.sizes, {file, chunk.offset, chunk.length}});
  }
  for (const RankObject& object : rank.objects) {
    metadata.objects.try_emplace(object.name, DcpPlace{file, object.offset, object.length});
    metadata.paths[object.name] = path_value(object.path);
  }
}

// Tied parameters: further names of the same bytes.
void add_other_names(DcpMetadata& metadata, const std::vector<RankManifest>& ranks) {
  for (const RankManifest& rank : ranks)
    for (const RankTensor& part : rank.tensors)
      for (const std::string& other : part.other_names) {
        if (!metadata.tensors.try_emplace(other, metadata.tensors.at(join(part.path, "."))).second)
          continue;
        const std::string& top = part.path.front();
        metadata.paths[other] = path_value(json{top, other.substr(top.size() + 1)});
      }
}

// Elements that two tensors share are in the files once. Both are cut at the same places (see Note [Rows in
// tables]), so a chunk of the other one is either here already or is missing here.
void add_rests(DcpMetadata& metadata, const std::vector<RankManifest>& ranks) {
  std::map<std::string, std::string> rests;
  for (const RankManifest& rank : ranks)
    for (const RankTensor& part : rank.tensors)
      if (!part.rest_of.empty()) rests.emplace(join(part.path, "."), part.rest_of);
  for (const auto& [name, other] : rests) {
    const auto found = metadata.tensors.find(other);
    require<CheckpointError>(found != metadata.tensors.end(), "'", name, "' has its rest in '",
                             other, "', which no rank wrote");
    std::vector<DcpChunk>& chunks = metadata.tensors.at(name).chunks;
    std::set<std::vector<std::int64_t>> own;
    for (const DcpChunk& chunk : chunks) own.insert(chunk.offsets);
    for (const DcpChunk& chunk : found->second.chunks)
      if (!own.contains(chunk.offsets)) chunks.push_back(chunk);
  }
}

DcpMetadata make_metadata(const std::vector<RankManifest>& ranks) {
  DcpMetadata metadata;
  for (const RankManifest& rank : ranks) {
    metadata.files.push_back(data_file(rank.header.rank));
    add_tensors(metadata, rank, metadata.files.size() - 1);
  }
  add_rests(metadata, ranks);
  for (auto& [name, tensor] : metadata.tensors) {
    const std::string problem = tidy_chunks(tensor.shape, tensor.chunks);
    require<CheckpointError>(problem.empty(), "'", name, "' ", problem);
  }
  add_other_names(metadata, ranks);
  return metadata;
}

json part_of(const json& shared, const char* key) {
  return shared.is_object() && shared.contains(key) ? shared.at(key) : json();
}

// In the manner of Lightning's file of this name.
void write_meta(const std::string& path, const Manifest& about) {
  const json& shared = about.shared;
  const json schedule = part_of(shared, "schedule");
  json meta{{"epoch", part_of(shared, "epoch")},
            {"global_step", about.step},
            {"loops", {{"loader", part_of(shared, "loader")}}},
            {"lr_schedulers", schedule.is_null() ? json::array() : json::array({schedule})},
            {"hyper_parameters", part_of(shared, "config")},
            {"floe",
             {{"format", 1},
              {"step", about.step},
              {"world_size", about.world_size},
              {"metrics", about.metrics},
              {"state", shared}}}};
  if (meta["epoch"].is_null()) meta["epoch"] = 0;
  TorchFileWriter writer(path);
  writer.finish(to_pickle(meta));
}

}  // namespace

void assemble(const std::string& folder, Manifest about, const std::vector<RankManifest>& ranks) {
  const std::string metadata = write_dcp_metadata(make_metadata(ranks));
  write_meta(str(folder, "/", kMetaFile), about);
  stop_point("meta written");
  const auto add_file = [&](CheckedRange range) {
    about.file_bytes[range.file] = range.length;
    about.ranges.push_back(std::move(range));
  };
  about.ranks.assign(static_cast<std::size_t>(about.world_size), nullptr);
  for (const RankManifest& rank : ranks) {
    about.ranks.at(static_cast<std::size_t>(rank.header.rank)) = rank.header.state;
    about.file_bytes[data_file(rank.header.rank)] = rank.file_bytes;
    add_file(checked_file(folder, manifest_file(rank.header.rank)));
  }
  add_file(checked_file(folder, kMetaFile));
  add_file({kDcpMetadataFile, 0, static_cast<std::int64_t>(metadata.size()), crc32(metadata), ""});
  write_manifest(str(folder, "/", kManifestFile), about);
  stop_point("manifest written");
  write_file_atomically(str(folder, "/", kDcpMetadataFile), metadata);
  sync_folder(folder);
  stop_point("metadata written");
}

}  // namespace floe::checkpoint
