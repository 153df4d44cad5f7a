// A run that goes on from a checkpoint: where its data goes on, and what it does differently.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/checkpoint/checkpointer.h"
#include "floe/data/loader/loader.h"
#include "floe/shard/engine.h"
#include "floe/train/run_config.h"

namespace floe::train {

struct DataPosition {
  checkpoint::RankStates ranks;     // of loaders; empty: the beginning of the data
  std::int64_t batches_behind = 0;  // that are to be read and left out from there
  // With run.resume_data: restart, of a checkpoint that was saved after such a restart: its data
  // goes on, unless it is another once more.
  bool restarts_if_other = false;
};

// The states of the checkpoint's ranks. A rank that died left none, even where a copy of its slices
// is in the set: then all ranks go back to an older checkpoint of the run, or to the beginning, and
// read on from there to the same place. With run.resume_data: restart the data begins anew, once: a
// checkpoint whose own configuration says so was saved after that.
DataPosition data_position(const checkpoint::Restored& restored, const RunConfig& config);

// Collective: the data at that position. Throws data::OtherData when it belongs to other data.
std::unique_ptr<data::Loader> open_loader(const DataPosition& position, const DataConfig& config,
                                          const data::LoaderContext& context,
                                          shard::Engine& engine);

// What the trainer saved in the checkpoint that a run would go on from; null: nothing is readable.
nlohmann::json newest_state(const RunSection& run);

// Logs in what a run on so many ranks, with the resolved configuration `now`, differs from the one
// that saved this state: a table of every key whose value is another one, the old and the new
// value, and whether that is harmless, takes effect, or is refused. Keys that one of the two does
// not know (another version of floe) are left out.
void log_resume_changes(const nlohmann::json& saved, const nlohmann::json& now,
                        const RunConfig& config, int world_size);

}  // namespace floe::train
