// Checkpoints in words, or as JSON: what stands beside the tensors, and whether all is well.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace floe::cli {

// Of a directory of torch.distributed.checkpoint or a file of torch.save that is a training state: who
// wrote it, step, world size, parts, files, values that are no tensors, health. Null for plain weights.
//
// `verify`: reads every byte. A checkpoint of floe is compared with its checksums; of others every
// item is read, since torch keeps no checksums of tensors. Throws CheckpointError for the first defect,
// and ConfigError for what is no checkpoint.
nlohmann::ordered_json checkpoint_facts(const std::string& path, bool verify);

std::string facts_text(const nlohmann::ordered_json& facts);

}  // namespace floe::cli
