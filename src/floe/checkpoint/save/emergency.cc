#include "floe/checkpoint/save/emergency.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/save/save_job.h"
#include "floe/core/error.h"
#include "floe/io/file/file.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;

// The ranks whose files are in the folder.
std::vector<RankManifest> read_set(const std::string& folder) {
  std::vector<int> ranks;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    int rank = 0;
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

}  // namespace

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
  std::error_code error;
  std::vector<std::string> sets;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().starts_with(kEmergencyPart))
      sets.push_back(entry.path().string());
  for (const std::string& set : sets) {
    try {
      const std::vector<RankManifest> ranks = read_set(set);
      finish_set(set, about, ranks);
      if (fs::exists(target) &&
          read_manifest(manifest_path(target)).step > ranks.front().header.step)
        continue;
      replace(set, target);
      sync_folder(folder);
    } catch (const std::exception& e) {
      refused.push_back(str("the emergency set '", set, "' is not used: ", e.what()));
    }
  }
  return refused;
}

}  // namespace floe::checkpoint
