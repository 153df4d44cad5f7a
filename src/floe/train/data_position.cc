#include "floe/train/data_position.h"

#include <algorithm>
#include <filesystem>

#include "floe/checkpoint/folders.h"
#include "floe/checkpoint/manifest.h"
#include "floe/core/log.h"

namespace floe::train {
namespace {

bool is_whole(const std::vector<nlohmann::json>& ranks) {
  return !ranks.empty() && std::none_of(ranks.begin(), ranks.end(),
                                        [](const nlohmann::json& rank) { return rank.is_null(); });
}

}  // namespace

DataPosition data_position(const checkpoint::Restored& restored, const std::string& run_folder,
                           std::int64_t batches_per_step) {
  if (restored.ranks.empty() || is_whole(restored.ranks)) return {restored.ranks, 0};
  const std::int64_t attempts = restored.shared.value("attempts", restored.step);
  const std::string last = checkpoint::manifest_path(checkpoint::checkpoints_folder(run_folder) +
                                                     "/" + checkpoint::kLast);
  DataPosition position{{}, attempts * batches_per_step};
  std::string from = "the beginning";
  if (std::filesystem::exists(last)) {
    const checkpoint::Manifest older = checkpoint::read_manifest(last);
    const std::int64_t before = older.shared.value("attempts", older.step);
    if (is_whole(older.ranks) && before <= attempts) {
      position = {older.ranks, (attempts - before) * batches_per_step};
      from = str("step ", older.step);
    }
  }
  log::info("data: a rank that died left no position; reading on from ", from, " over ",
            position.batches_behind, " batches");
  return position;
}

}  // namespace floe::train
