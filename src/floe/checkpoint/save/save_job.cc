#include "floe/checkpoint/save/save_job.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/save/commit_point.h"
#include "floe/checkpoint/save/trainable_file.h"
#include "floe/core/error.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/file/file.h"
#include "floe/io/torch_file/torch_file.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using pickle::Value;

constexpr const char* kMetaFile = "meta.pt";
constexpr std::int64_t kCheckedBlock = 16 << 20;

// ---- a directory of torch.distributed.checkpoint, from the files of the ranks ----

Value path_value(const json& path) {
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

// Elements that two tensors share are in the files once. Both are cut at the same places (see Note
// [Rows in tables]), so a chunk of the other one is either here already or is missing here.
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

// ---- one file of torch.save, from such a directory ----
//
// Everything (layout full), or what OpenFlamingo keeps (layout trainable), copied block by block,
// so that host memory does not grow with the model.

Value whole_state(const DcpDirectory& directory, const SaveJob& job, TorchFileWriter& writer) {
  TensorCopier copier(directory, writer);
  std::map<std::string, std::map<std::string, pickle::Entries>> states;  // by set and parameter
  std::map<std::vector<std::pair<std::size_t, std::int64_t>>, Value> copied;  // by place
  pickle::Entries weights, averages;
  for (const auto& [name, tensor] : directory.metadata().tensors) {
    const pickle::Items& path = directory.metadata().paths.at(name).items();
    // Names of the same bytes, as tied weights have them, are one tensor in the file too.
    const bool has_bytes = !tensor.chunks.empty();
    std::vector<std::pair<std::size_t, std::int64_t>> place;
    for (const DcpChunk& chunk : tensor.chunks)
      place.emplace_back(chunk.place.file, chunk.place.offset);
    const auto known = copied.find(place);
    const Value value = has_bytes && known != copied.end() ? known->second : copier.copy(name);
    if (has_bytes) copied.emplace(place, value);
    if (path[0].text() == "model")
      weights.emplace_back(path[1], value);
    else if (path[0].text() == "ema")
      averages.emplace_back(path[1], value);
    else if (const auto state = state_place(path))
      states[state->set][state->parameter].emplace_back(state->key, value);
  }
  pickle::Entries root{{"epoch", epoch_of(job)},
                       {"global_step", job.header.step},
                       {"state_dict", pickle::ordered_dict(std::move(weights))}};
  add_optimizers(job, "optimizer", "optimizers", root, [&](const OptimizerGroups& optimizer) {
    pickle::Entries state;
    for (auto& [name, entries] : states[optimizer.set])
      state.emplace_back(name, pickle::dict(std::move(entries)));
    pickle::Items groups;
    for (std::size_t g = 0; g < optimizer.groups.size(); ++g) {
      pickle::Items names;
      for (const std::string& name : optimizer.groups[g].names) names.emplace_back(name);
      groups.push_back(group_value(directory, optimizer, g, std::move(names)));
    }
    return optimizer_value(std::move(state), std::move(groups));
  });
  if (!averages.empty()) root.emplace_back("ema", pickle::ordered_dict(std::move(averages)));
  return pickle::dict(std::move(root));
}

// The file's ranges, each with a checksum.
void add_ranges(Manifest& manifest, const std::string& path, const std::string& name) {
  const File file(path);
  manifest.file_bytes = {{name, file.size()}};
  manifest.ranges.clear();
  std::vector<std::byte> block;
  for (std::int64_t at = 0; at < file.size(); at += kCheckedBlock) {
    block.resize(static_cast<std::size_t>(std::min(kCheckedBlock, file.size() - at)));
    file.read_at(at, block);
    manifest.ranges.push_back(
        {name, at, static_cast<std::int64_t>(block.size()), crc32(block), ""});
  }
}

// Turns the directory into the file `target` and its manifest; the file appears in one step, with
// its manifest already there. Throws CheckpointError or Error.
void make_single_file(const std::string& directory, const SaveJob& job, const std::string& target) {
  const std::string name = fs::path(target).filename().string();
  const std::string made = str(directory, "/", name);
  Manifest manifest = read_manifest(str(directory, "/", kManifestFile));
  {
    const DcpDirectory saved(directory);
    TorchFileWriter writer(made);
    writer.finish(job.about.layout == Layout::full ? whole_state(saved, job, writer)
                                                   : trainable_state(saved, job, writer));
  }
  if (job.about.layout == Layout::trainable)
    for (const OptimizerGroups& optimizer : job.optimizers)
      manifest.numbered[optimizer.set] = numbered_names(job.file_tensors, optimizer.groups);
  commit_point("file written");
  add_ranges(manifest, made, name);
  write_manifest(target + ".floe.json", manifest);
  commit_point("manifest of file written");
  replace(made, target);
}

// ---- the commit ----

// What went wrong, as a text to tell the others; empty when nothing did.
std::string problem_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

// Where every rank writes.
std::string temporary_folder(const SaveJob& job) {
  return str(job.folder, "/", kTemporary, name_of_step(Layout::sharded, job.header.step));
}

void prepare(const SaveJob& job) {
  make_folder(job.folder);
  remove_quietly(temporary_folder(job));
  make_folder(temporary_folder(job));
  commit_point("folder made");
}

void commit(const SaveJob& job) {
  const std::string temporary = temporary_folder(job);
  std::vector<RankManifest> ranks;
  for (int rank = 0; rank < job.header.world_size; ++rank)
    ranks.push_back(read_rank_manifest(temporary, rank));
  assemble(temporary, job.about, ranks);
  const Layout layout = job.about.layout;
  const std::string name = name_of_step(layout, job.header.step);
  if (layout == Layout::sharded) {
    replace(temporary, str(job.folder, "/", name));
  } else {
    make_single_file(temporary, job, str(job.folder, "/", name));
    remove_quietly(temporary);
  }
  commit_point("renamed");
  sync_folder(job.folder);
  point_last_to(job.folder, name);
  sync_folder(job.folder);
  commit_point("linked");
  retire_emergencies(job.folder);
  keep_only(job.folder, job.config, job.header.step);
}

}  // namespace

void assemble(const std::string& folder, Manifest about, const std::vector<RankManifest>& ranks) {
  const std::string metadata = write_dcp_metadata(make_metadata(ranks));
  write_meta(str(folder, "/", kMetaFile), about);
  commit_point("meta written");
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
  commit_point("manifest written");
  write_file_atomically(str(folder, "/", kDcpMetadataFile), metadata);
  sync_folder(folder);
  commit_point("metadata written");
}

std::string run_save(const SaveJob& job, StoreExchange& ranks) {
  const std::string what = str("the save of step ", job.header.step);
  const bool first = ranks.rank() == 0;
  const auto agree = [&](const std::string& problem) {
    const std::string found = ranks.first_problem(problem, what);
    if (found.empty()) return;
    if (first) remove_quietly(temporary_folder(job));
    throw CheckpointError(str(what, " failed, older checkpoints are as they were: ", found));
  };
  agree(first ? problem_of([&] { prepare(job); }) : "");
  agree(problem_of(
      [&] { write_rank_files(temporary_folder(job), job.header, job.tensors, job.objects); }));
  commit_point("all written");
  agree(first ? problem_of([&] { commit(job); }) : "");
  return str(job.folder, "/", name_of_step(job.about.layout, job.header.step));
}

}  // namespace floe::checkpoint
