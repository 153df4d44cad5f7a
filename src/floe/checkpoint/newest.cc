#include "floe/checkpoint/newest.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "floe/checkpoint/folders.h"
#include "floe/checkpoint/manifest.h"
#include "floe/checkpoint/resume.h"
#include "floe/checkpoint/verify.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/dcp_metadata.h"
#include "floe/io/open_tensors.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool holds_checkpoints(const fs::path& folder) {
  return is_there(folder / kLast) || is_there(folder / kEmergency) ||
         !list_checkpoints(folder.string()).empty();
}

// What a run writes beside its configuration.
bool has_records(const fs::path& run) {
  return is_there(run / "metrics.jsonl") || is_folder(run / "logs");
}

std::string or_here(const fs::path& folder) { return folder.empty() ? "." : folder.string(); }

// Without the slash behind it.
fs::path clean(const std::string& path) {
  const fs::path given(path);
  return given.has_filename() ? given : given.parent_path();
}

// In a folder where no checkpoint has floe's manifest they are another trainer's: by the step in their
// name.
std::vector<std::string> foreign_candidates(const std::string& folder) {
  std::vector<std::string> names;
  for (const Listed& listed : list_checkpoints(folder)) names.push_back(listed.name);
  names.emplace_back(kLast);
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    const std::string path = str(folder, "/", name);
    if (is_there(manifest_path(path))) return {};
    if (is_there(path)) paths.push_back(path);
  }
  return paths;
}

// Before the ranks know each other, by what their launcher told them: one line is enough.
bool is_first_rank() {
  for (const char* name : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"})
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  return true;
}

}  // namespace

std::string run_at(const std::string& path) {
  const fs::path here = clean(path);
  if (is_folder(here)) {
    if (is_folder(here / "checkpoints")) return here.string();
    if (is_there(here / "config.yaml") && has_records(here)) return here.string();
    const bool inside = here.filename() == "checkpoints" &&
                        (holds_checkpoints(here) || is_there(here.parent_path() / "config.yaml"));
    return inside ? or_here(here.parent_path()) : "";
  }
  if (here.filename() != "config.yaml" || !is_there(here)) return "";
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

void check_whole(const std::string& checkpoint, Reading reading) {
  require<CheckpointError>(is_there(checkpoint), "'", checkpoint, "' does not exist");
  require<CheckpointError>(!is_folder(checkpoint) || is_dcp_directory(checkpoint) ||
                               !is_there(manifest_path(checkpoint)),
                           "'", checkpoint, "' has no .metadata, so its save was not finished");
  if (const std::string file = manifest_path(checkpoint); is_there(file)) {
    const auto ranges = ranges_of(checkpoint, read_manifest(file));
    if (reading == Reading::bytes) verify(checkpoint, ranges);
  }
  open_tensors(checkpoint);
}

Newest newest_whole(const std::string& run, Reading reading) {
  const std::string folder = checkpoints_folder(run);
  Newest newest;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(kEmergencyPart))
      newest.passed_over.push_back(
          str("'", entry.path().string(),
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
