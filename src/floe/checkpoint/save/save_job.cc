#include "floe/checkpoint/save/save_job.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/save/commit_point.h"
#include "floe/checkpoint/save/single_file.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/file/file.h"
#include "floe/io/torch_file/torch_file.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using pickle::Value;

constexpr const char* kMetaFile = "meta.pt";
constexpr std::int64_t kMostSmallBytes = std::int64_t{1} << 34;  // of meta.pt and all states

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

// From the files of the ranks to a directory of torch.distributed.checkpoint: .metadata, meta.pt
// and floe.json. Needs nothing but the folder, so an emergency's files are put together later.
// `about` has what the manifest says of the whole; files and ranks are filled in here. `.metadata`
// is written last. Throws CheckpointError when the ranks' tensors are not whole or do not fit
// together.
void assemble(const std::string& folder, Manifest about, const std::vector<RankManifest>& ranks) {
  const std::string metadata = write_dcp_metadata(make_metadata(ranks));
  write_meta(str(folder, "/", kMetaFile), about);
  commit_point("meta written");
  const auto add_file = [&](const std::vector<CheckedRange>& ranges) {
    about.file_bytes[ranges.front().file] = ranges.back().offset + ranges.back().length;
    about.ranges.insert(about.ranges.end(), ranges.begin(), ranges.end());
  };
  // As it is on disk.
  const auto add_written = [&](const char* file) {
    add_file(checked_ranges(file, read_text(str(folder, "/", file), kMostSmallBytes)));
  };
  std::vector<json> states(static_cast<std::size_t>(about.world_size));
  for (const RankManifest& rank : ranks) {
    states.at(static_cast<std::size_t>(rank.header.rank)) = rank.header.state;
    about.file_bytes[data_file(rank.header.rank)] = rank.file_bytes;
    add_file({rank.file});
  }
  write_states(folder, states);
  commit_point("states written");
  add_written(kStatesFile);
  about.ranks = RankStates(folder, about.world_size, RankStates(std::move(states)).missing());
  add_written(kMetaFile);
  add_file(checked_ranges(kDcpMetadataFile, metadata));
  write_manifest(str(folder, "/", kManifestFile), about);
  commit_point("manifest written");
  write_file_atomically(str(folder, "/", kDcpMetadataFile), metadata);
  sync_folder(folder);
  commit_point("metadata written");
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

// `placed`: the checkpoint has its name, and is whole whatever happens from then on.
void commit(const SaveJob& job, bool& placed) {
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
  placed = true;
  commit_point("renamed");
  sync_folder(job.folder);
  point_last_to(job.folder, name);
  sync_folder(job.folder);
  commit_point("linked");
  retire_emergencies(job.folder, job.header.run);
  keep_only(job.folder, job.config, job.header.step);
}

// ---- emergency sets ----

// The ranks whose files are in the folder.
std::vector<RankManifest> read_set(const std::string& folder) {
  std::vector<int> ranks;
  for (const std::string& name : file_names_in(folder)) {
    int rank = 0;
    // NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion): the name is compared
    if (std::sscanf(name.c_str(), "floe_rank_%d.json", &rank) == 1 && name == manifest_file(rank))
      ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<RankManifest> manifests;
  for (const int rank : ranks) manifests.push_back(read_rank_manifest(folder, rank));
  return manifests;
}

void check_one_state(const std::vector<RankManifest>& ranks) {
  require<CheckpointError>(!ranks.empty(), "no rank finished writing");
  const RankHeader& first = ranks.front().header;
  for (const RankManifest& rank : ranks) {
    const RankHeader& header = rank.header;
    require<CheckpointError>(header.step == first.step, "rank ", first.rank, " is of step ",
                             first.step, " and rank ", header.rank, " of step ", header.step);
    require<CheckpointError>(header.run == first.run && header.world_size == first.world_size &&
                                 header.model == first.model && header.holdings == first.holdings,
                             "ranks ", first.rank, " and ", header.rank, " are of different runs");
    require<CheckpointError>(header.sets == first.sets, "rank ", first.rank, " has the sets ",
                             in_words(first.sets), " and rank ", header.rank, " ",
                             in_words(header.sets), ": only one of them had switched");
  }
}

// Puts the set together in its own folder.
void finish_set(const std::string& folder, Manifest about, const std::vector<RankManifest>& ranks) {
  check_one_state(ranks);
  const RankHeader& first = ranks.front().header;
  about.step = first.step;
  about.world_size = first.world_size;
  about.layout = Layout::sharded;
  about.emergency = true;
  about.model = first.model;
  about.shared = first.shared;
  about.sets = first.sets;
  // What the ranks wrote, not what this start of the program would write.
  if (first.holdings.is_null())
    about.kept = about.trained = std::nullopt;
  else
    static_cast<Holdings&>(about) = holdings_from_json(first.holdings, folder);
  about.metrics.clear();
  assemble(folder, about, ranks);
}

// The step of a set that was put together before; -1: there is none, or none that could be used.
std::int64_t step_of_set(const std::string& set) {
  try {
    return fs::exists(set) ? read_manifest(manifest_path(set)).step : -1;
  } catch (const CheckpointError& e) {
    log::warn("the emergency set '", set, "' is not used: ", e.what());
    return -1;
  }
}

}  // namespace

std::string run_save(const SaveJob& job, StoreExchange& ranks) {
  const std::string what = str("the save of step ", job.header.step);
  const bool first = ranks.rank() == 0;
  const auto agree = [&](const std::string& problem) {
    const std::string found = ranks.first_problem(problem, what);
    if (found.empty()) return;
    if (first) remove_quietly(temporary_folder(job));
    throw CheckpointError(str(what, " failed: ", found));
  };
  const auto as_before = [](const std::string& problem) {
    return problem.empty() ? "" : str(problem, "; older checkpoints are as they were");
  };
  agree(first ? as_before(problem_of([&] { prepare(job); })) : "");
  agree(as_before(problem_of(
      [&] { write_rank_files(temporary_folder(job), job.header, job.tensors, job.objects); })));
  commit_point("all written");
  const std::string path = str(job.folder, "/", name_of_step(job.about.layout, job.header.step));
  bool placed = false;
  const std::string problem = first ? problem_of([&] { commit(job, placed); }) : "";
  agree(placed && !problem.empty()
            ? str(problem, "; the checkpoint itself is whole, at '", path, "'")
            : as_before(problem));
  return path;
}

void write_emergency(const std::string& folder, const RankHeader& header,
                     const std::vector<StateTensor>& tensors,
                     const std::vector<StateObject>& objects) {
  const std::string set = str(folder, "/", kEmergencyPart, header.run);
  make_folder(set);
  write_rank_files(set, header, tensors, objects);
  sync_folder(set);
}

bool complete_emergency(const std::string& folder, const RankHeader& header,
                        const Manifest& about) {
  const std::string set = str(folder, "/", kEmergencyPart, header.run);
  for (int rank = 0; rank < header.world_size; ++rank)
    if (!fs::exists(str(set, "/", manifest_file(rank)))) return false;
  // Ranks that finish at the same time all get here; one of them makes the mark.
  const std::string mark = set + "/.completing";
  const int fd = ::open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  ::close(fd);
  finish_set(set, about, read_set(set));
  fs::remove(mark);
  replace(set, str(folder, "/", kEmergency));
  sync_folder(folder);
  return true;
}

std::vector<std::string> gather_emergencies(const std::string& folder, const Manifest& about) {
  std::vector<std::string> refused;
  const std::string target = str(folder, "/", kEmergency);
  for (const std::string& name : file_names_in(folder)) {
    if (!name.starts_with(kEmergencyPart)) continue;
    const std::string set = str(folder, "/", name);
    try {
      const std::vector<RankManifest> ranks = read_set(set);
      finish_set(set, about, ranks);
      if (step_of_set(target) > ranks.front().header.step) continue;
      replace(set, target);
      sync_folder(folder);
    } catch (const CheckpointError& e) {
      refused.push_back(str("the emergency set '", set, "' is not used: ", e.what()));
    } catch (const DataError& e) {
      refused.push_back(str("the emergency set '", set, "' is not used: ", e.what()));
    } catch (const Error& e) {
      // Anything else, such as a full disk, says nothing of the set, which the next save would
      // remove.
      throw Error(str("the emergency set '", set, "' cannot be put together now: ", e.what(),
                      "; mend that, or remove the folder to go on without it"));
    }
  }
  return refused;
}

}  // namespace floe::checkpoint
