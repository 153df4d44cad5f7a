// What `floe inspect` says of checkpoints, models, runs and files of tensors: facts as JSON, and
// those as text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "floe/cli/used_model.h"

namespace floe::cli {

// Of a directory of torch.distributed.checkpoint or a file of torch.save that is a training state:
// who wrote it, step, world size, parts, files, values that are no tensors, health. Null for plain
// weights.
//
// `verify`: reads every byte. A checkpoint of floe is compared with its checksums; of others every
// item is read, since torch keeps no checksums of tensors. Throws CheckpointError for the first
// defect, and ConfigError for what is no checkpoint.
nlohmann::ordered_json checkpoint_facts(const std::string& path, bool verify);

// Those of the functions here, one or more lines for each.
std::string facts_text(const nlohmann::ordered_json& facts);

// The model that a YAML describes: the kind of model, its files and sizes, what trains, and what is
// in no file. For facts_text(). Reads headers only.
nlohmann::ordered_json model_facts(const UsedModel& used);

// How far a run came, and its checkpoints. `run`, the folder; `step`, `planned_steps` and `metrics`
// (the last losses) as far as the run's files tell them; `checkpoints`, names, newest first. For
// facts_text().
nlohmann::ordered_json run_facts(const std::string& run_folder);

// Metadata, then each tensor: name, dtype, shape, size; and totals.
std::string tensors_text(const std::string& path);
// One line: number, elements and bytes of the tensors, all of them and by dtype.
std::string totals_text(const std::string& path);
nlohmann::ordered_json tensors_json(const std::string& path);

}  // namespace floe::cli
