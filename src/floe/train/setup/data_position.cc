#include "floe/train/setup/data_position.h"

#include <algorithm>
#include <filesystem>

#include "floe/checkpoint/folder/folders.h"
#include "floe/checkpoint/folder/manifest.h"
#include "floe/core/log.h"
#include "floe/core/str.h"

namespace floe::train {
namespace {

bool is_whole(const std::vector<nlohmann::json>& ranks) {
  return !ranks.empty() && std::none_of(ranks.begin(), ranks.end(),
                                        [](const nlohmann::json& rank) { return rank.is_null(); });
}

// Whether the checkpoint was saved by a run that had begun its data anew.
bool was_restarted(const nlohmann::json& shared) {
  const auto said = [](const nlohmann::json& block, const char* key) {
    return block.is_object() ? block.value(key, nlohmann::json()) : nlohmann::json();
  };
  return said(said(said(shared, "config"), "run"), "resume_data") == "restart";
}

DataPosition where_saved(const checkpoint::Restored& restored, const RunConfig& config) {
  const std::int64_t batches_per_step = config.train.gradient_accumulation;
  const std::string run_folder = config.run.folder();
  if (restored.ranks.empty() || is_whole(restored.ranks)) return {restored.ranks, 0, false};
  const std::int64_t attempts = restored.shared.value("attempts", restored.step);
  const std::string last = checkpoint::manifest_path(checkpoint::checkpoints_folder(run_folder) +
                                                     "/" + checkpoint::kLast);
  DataPosition position{{}, attempts * batches_per_step, false};
  std::string from = "the beginning";
  if (std::filesystem::exists(last)) {
    const checkpoint::Manifest older = checkpoint::read_manifest(last);
    const std::int64_t before = older.shared.value("attempts", older.step);
    if (is_whole(older.ranks) && before <= attempts) {
      position = {older.ranks, (attempts - before) * batches_per_step, false};
      from = str("step ", older.step);
    }
  }
  log::info("data: a rank that died left no position; reading on from ", from, " over ",
            counted(position.batches_behind, "batch"));
  return position;
}

}  // namespace

DataPosition data_position(const checkpoint::Restored& restored, const RunConfig& config) {
  const bool restarts = config.run.resume_data == RunSection::ResumeData::restart;
  if (restarts && !was_restarted(restored.shared)) {
    log::info("data: begins anew (run.resume_data is restart)");
    return {};
  }
  DataPosition position = where_saved(restored, config);
  position.restarts_if_other = restarts;
  return position;
}

std::unique_ptr<data::Loader> open_loader(const DataPosition& position, const DataConfig& config,
                                          const data::LoaderContext& context,
                                          shard::Engine& engine) {
  if (position.ranks.empty()) return std::make_unique<data::Loader>(config, context);
  if (!position.restarts_if_other)
    return std::make_unique<data::Loader>(config, context, position.ranks);
  std::unique_ptr<data::Loader> loader;
  std::string other;
  try {
    loader = std::make_unique<data::Loader>(config, context, position.ranks);
  } catch (const data::OtherData& error) {
    other = error.what();
  }
  // A rank may have a file of its own, but all begin anew or none.
  if (!engine.any_rank_has(!loader)) return loader;
  log::info("data: begins anew (run.resume_data is restart)", other.empty() ? "" : ": ", other);
  return std::make_unique<data::Loader>(config, context);
}

}  // namespace floe::train
