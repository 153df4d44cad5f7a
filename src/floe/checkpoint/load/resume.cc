#include "floe/checkpoint/load/resume.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/save/rank_files.h"
#include "floe/comm/rendezvous.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/file/file.h"
#include "floe/io/tensors/open_tensors.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;

// That a file cannot be opened by this user or at this moment says nothing of what is in it. A
// checkpoint that is passed over for it would be removed after the next save, as one that the run
// went back behind.
void require_access(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const int error = fd < 0 ? errno : 0;
  if (fd >= 0) ::close(fd);
  const bool hidden = error == EACCES || error == EPERM || error == ESTALE || error == ETIMEDOUT ||
                      error == EHOSTDOWN;
  require<ResourceError>(!hidden, "cannot open '", path, "': ", std::strerror(error),
                         "; the checkpoint may be whole: let it be read, or move it away");
}

struct Candidate {
  std::string path;
  std::int64_t step = 0;
  bool emergency = false;
  std::string began_from;  // Note [Where a run began]
};

std::vector<Candidate> find_candidates(const std::string& folder,
                                       std::vector<std::string>& passed_over) {
  std::vector<Candidate> found;
  const auto consider = [&](const std::string& name) {
    const std::string path = str(folder, "/", name);
    try {
      require_access(manifest_path(path));
      require<CheckpointError>(!fs::is_directory(path) || is_dcp_directory(path), "'", path,
                               "' has no .metadata, so its save was not finished");
      const Manifest manifest = read_manifest(manifest_path(path));
      const auto& shared = manifest.shared;
      found.push_back({path, manifest.step, manifest.emergency,
                       shared.is_object() ? shared.value(kBeganFrom, "") : ""});
    } catch (const ResourceError&) {
      throw;
    } catch (const Error& e) {
      passed_over.push_back(str("'", path, "' is not used: ", e.what()));
    }
  };
  for (const Listed& listed : list_checkpoints(folder)) consider(listed.name);
  if (last_is_a_copy(folder)) consider(kLast);  // perhaps all that was copied
  if (fs::exists(str(folder, "/", kEmergency))) consider(kEmergency);
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.step != b.step ? a.step > b.step : a.emergency > b.emergency;
  });
  return found;
}

// The step of a checkpoint that floe wrote; 0 for others, which do not tell without being opened.
std::int64_t step_of(const std::string& path) {
  try {
    if (fs::exists(manifest_path(path))) return read_manifest(manifest_path(path)).step;
  } catch (const Error&) {
    // Whoever tries to use it says why it cannot be.
  }
  return 0;
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool holds_checkpoints(const fs::path& folder) {
  if (!is_folder(folder)) return false;
  return path_exists(folder / kLast) || path_exists(folder / kEmergency) ||
         !list_checkpoints(folder.string()).empty();
}

// What a run writes beside its configuration.
bool has_records(const fs::path& run) {
  return path_exists(run / "metrics.jsonl") || is_folder(run / "logs");
}

std::string or_here(const fs::path& folder) { return folder.empty() ? "." : folder.string(); }

// Without the slash behind it.
fs::path clean(const std::string& path) {
  const fs::path given(path);
  return given.has_filename() ? given : given.parent_path();
}

// In a folder where no checkpoint has floe's manifest they are another trainer's: by the step in
// their name.
std::vector<std::string> foreign_candidates(const std::string& folder) {
  std::vector<std::string> names;
  for (const Listed& listed : list_checkpoints(folder)) names.push_back(listed.name);
  names.emplace_back(kLast);
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    const std::string path = str(folder, "/", name);
    if (path_exists(manifest_path(path))) return {};
    if (path_exists(path)) paths.push_back(path);
  }
  return paths;
}

// Before the ranks know each other, by what their launcher told them: one line is enough.
bool is_first_rank() {
  try {
    return comm::find_rendezvous({}, comm::process_environment()).rank == 0;
  } catch (const ConfigError&) {
    return true;  // whoever joins will say what is wrong
  }
}

std::string folder_of(const std::string& checkpoint) {
  if (fs::is_directory(checkpoint)) return checkpoint;
  const std::string parent = fs::path(checkpoint).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::int64_t size_on_disk(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  require<CheckpointError>(!error, "'", path, "' of the checkpoint is missing (", error.message(),
                           ")");
  return static_cast<std::int64_t>(size);
}

// Ranges must follow each other and fill the file.
void check_cover(const std::string& path, std::vector<CheckedRange>& ranges, std::int64_t bytes) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::int64_t at = 0;
  for (const CheckedRange& range : ranges) {
    require<CheckpointError>(
        range.offset == at && range.length >= 0 && range.length <= bytes - at, "'", path,
        "': the checksums do not cover byte ", at,
        "; the checkpoint was not written by this version of floe or is damaged");
    at += range.length;
  }
  require<CheckpointError>(at == bytes, "'", path, "': the checksums do not cover byte ", at);
}

void check_range(const std::string& folder, const CheckedRange& range, const File& file) {
  const std::uint32_t crc = crc32(file, range.offset, range.length);
  require<CheckpointError>(crc == range.crc, "'", folder, "/", range.file, "' is damaged",
                           range.what.empty() ? "" : " in ", range.what, ": bytes ", range.offset,
                           " to ", range.offset + range.length,
                           " do not have the checksum they were written with");
}

// Where part `number` of `parts` begins in a line of `total`; no product overflows.
std::int64_t share_of(std::int64_t total, int number, int parts) {
  return total / parts * number + total % parts * number / parts;
}

// All files of a checkpoint: those of the ranks one after the other, and the rest.
std::vector<std::pair<std::string, std::int64_t>> files_in_order(const Manifest& manifest) {
  std::map<std::string, std::int64_t> rest = manifest.file_bytes;
  std::vector<std::pair<std::string, std::int64_t>> files;
  for (int rank = 0; rank < manifest.world_size; ++rank)
    for (const std::string& file : {data_file(rank), manifest_file(rank)})
      if (const auto found = rest.extract(file)) files.emplace_back(file, found.mapped());
  files.insert(files.end(), rest.begin(), rest.end());
  return files;
}

// Of a rank's data they are in the rank's file, of all else in the manifest.
std::vector<CheckedRange> ranges_of_file(const std::string& folder, const Manifest& manifest,
                                         const std::string& file) {
  std::vector<CheckedRange> ranges;
  for (const CheckedRange& range : manifest.ranges)
    if (range.file == file) ranges.push_back(range);
  int rank = 0;
  // NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion): the name is compared
  const bool is_data = manifest.layout == Layout::sharded &&
                       std::sscanf(file.c_str(), "__%d_0.distcp", &rank) == 1 &&
                       file == data_file(rank) && rank >= 0 && rank < manifest.world_size;
  // It died before this save where there is none.
  if (!is_data || !manifest.file_bytes.contains(manifest_file(rank))) return ranges;
  const RankManifest of_rank = read_rank_manifest(folder, rank);
  for (const RankTensor& tensor : of_rank.tensors)
    for (const RankChunk& chunk : tensor.chunks)
      ranges.push_back(
          {file, chunk.offset, chunk.length, chunk.crc, str("'", join(tensor.path, "."), "'")});
  for (const RankObject& object : of_rank.objects)
    ranges.push_back({file, object.offset, object.length, object.crc, str("'", object.name, "'")});
  return ranges;
}

}  // namespace

bool is_run_folder(const std::string& path) { return fs::is_directory(checkpoints_folder(path)); }

std::vector<std::string> candidates(const std::string& folder,
                                    std::vector<std::string>& passed_over) {
  std::vector<std::string> paths;
  for (const Candidate& candidate : find_candidates(folder, passed_over))
    paths.push_back(candidate.path);
  return paths;
}

std::vector<std::string> candidates_from(const std::string& path, const std::string& folder,
                                         std::vector<std::string>& passed_over) {
  std::vector<std::string> begin{path};
  if (is_run_folder(path)) begin = candidates(checkpoints_folder(path), passed_over);
  const std::int64_t begin_step = begin.empty() ? 0 : step_of(begin.front());
  const std::vector<Candidate> all = find_candidates(folder, passed_over);
  const bool has_begun = std::any_of(all.begin(), all.end(),
                                     [&](const Candidate& own) { return own.began_from == path; });
  std::vector<std::string> paths;
  for (const Candidate& own : all)
    if (has_begun || own.step >= begin_step) paths.push_back(own.path);
  paths.insert(paths.end(), begin.begin(), begin.end());
  return paths;
}

Choice choose(const std::vector<std::string>& mine,
              const std::function<void(const std::string&)>& validate, StoreExchange& ranks) {
  const std::string what = "the choice of a checkpoint";
  const auto paths = as_bytes(nlohmann::json::parse(ranks.broadcast(as_text(mine).dump(), what)))
                         .get<std::vector<std::string>>();
  Choice choice;
  for (const std::string& path : paths) {
    std::string problem;
    try {
      validate(path);
    } catch (const ResourceError&) {
      throw;
    } catch (const std::exception& e) {
      problem = e.what();
    }
    problem = ranks.first_problem(problem, what);
    if (problem.empty()) {
      choice.path = path;
      break;
    }
    choice.passed_over.push_back(str("'", path, "' is not used: ", problem));
  }
  return choice;
}

std::string run_at(const std::string& path) {
  const fs::path here = clean(path);
  if (is_folder(here)) {
    if (is_folder(here / "checkpoints")) return here.string();
    if (path_exists(here / "config.yaml") && has_records(here)) return here.string();
    const bool inside =
        here.filename() == "checkpoints" &&
        (holds_checkpoints(here) || path_exists(here.parent_path() / "config.yaml"));
    return inside ? or_here(here.parent_path()) : "";
  }
  if (here.filename() != "config.yaml" || !path_exists(here)) return "";
  const fs::path folder = here.parent_path();
  const bool of_run = has_records(folder) || holds_checkpoints(folder / "checkpoints");
  return of_run ? or_here(folder) : "";
}

std::string run_of(const std::string& checkpoint) {
  std::error_code error;
  const fs::path place = fs::canonical(checkpoint, error);
  if (error || place.parent_path().filename() != "checkpoints") return "";
  return place.parent_path().parent_path().string();
}

void verify(const std::string& checkpoint, const Manifest& manifest, int part, int parts,
            Reading reading) {
  const std::string folder = folder_of(checkpoint);
  // One more than its bytes each: a file without any is somebody's, too.
  std::int64_t total = 0, at = 0;
  for (const auto& [file, bytes] : manifest.file_bytes) total += bytes + 1;
  const auto begin_of = [&](int number) { return share_of(total, number, parts); };
  const std::int64_t first = begin_of(part), end = begin_of(part + 1);
  for (const auto& [file, bytes] : files_in_order(manifest)) {
    const std::int64_t place = std::exchange(at, at + bytes + 1);
    if (place >= end || at <= first) continue;
    const std::string path = str(folder, "/", file);
    require_access(path);
    const std::int64_t found = size_on_disk(path);
    require<CheckpointError>(found == bytes, "'", path, "' has ", found, " bytes, but ", bytes,
                             " were written");
    std::vector<CheckedRange> ranges = ranges_of_file(folder, manifest, file);
    check_cover(path, ranges, bytes);
    if (reading == Reading::sizes) continue;
    std::unique_ptr<File> opened;
    for (const CheckedRange& range : ranges) {
      if (place + range.offset < first || place + range.offset >= end) continue;
      try {
        if (!opened) opened = std::make_unique<File>(path);
        check_range(folder, range, *opened);
      } catch (const DataError& e) {
        throw CheckpointError(e.what());
      }
    }
  }
}

void check_whole(const std::string& checkpoint, Reading reading) {
  require<CheckpointError>(path_exists(checkpoint), "'", checkpoint, "' does not exist");
  require<CheckpointError>(!is_folder(checkpoint) || is_dcp_directory(checkpoint) ||
                               !path_exists(manifest_path(checkpoint)),
                           "'", checkpoint, "' has no .metadata, so its save was not finished");
  if (const std::string file = manifest_path(checkpoint); path_exists(file)) {
    verify(checkpoint, read_manifest(file), 0, 1, reading);
  }
  open_tensors(checkpoint);
}

Newest newest_whole(const std::string& run, Reading reading) {
  const std::string folder = checkpoints_folder(run);
  Newest newest;
  for (const std::string& name : file_names_in(folder))
    if (name.starts_with(kEmergencyPart))
      newest.passed_over.push_back(
          str("'", folder, "/", name,
              "' is not used: it is what the ranks wrote when the run failed, and the run's next "
              "start puts it together"));
  std::vector<std::string> unread;
  std::vector<std::string> paths = candidates(folder, unread);
  const bool foreign = paths.empty();
  if (foreign) {
    paths = foreign_candidates(folder);
    if (!paths.empty()) unread.clear();
  }
  newest.passed_over.insert(newest.passed_over.end(), unread.begin(), unread.end());
  for (const std::string& path : paths) {
    try {
      check_whole(path, reading);
      if (foreign && is_first_rank())
        log::warn("'", path, "' has no ", kManifestFile,
                  ", so that nothing tells whether its bytes are right; a run of floe would not go "
                  "on from it");
      newest.path = path;
      return newest;
    } catch (const ResourceError&) {
      throw;
    } catch (const Error& error) {
      newest.passed_over.push_back(str("'", path, "' is not used: ", error.what()));
    }
  }
  return newest;
}

std::string weights_at(const std::string& path, const std::string& key) {
  const std::string run = path.empty() ? "" : run_at(path);
  if (run.empty()) return path;
  const Newest newest = newest_whole(run, Reading::sizes);
  require<ConfigError>(!newest.path.empty(), key, ": the run '", run,
                       "' has no checkpoint that could be used",
                       newest.passed_over.empty() ? "" : ": ", join(newest.passed_over, "; "));
  if (!is_first_rank()) return newest.path;
  for (const std::string& sentence : newest.passed_over) log::warn(sentence);
  log::info(key, ": the newest checkpoint of '", run, "' is '", newest.path, "'");
  return newest.path;
}

}  // namespace floe::checkpoint
