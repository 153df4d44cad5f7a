// What a path on the command line is. All commands ask here, so that a path means the same to each.
#pragma once

#include <string>

namespace floe::cli {

enum class PathKind {
  nothing,     // there is no such file or folder (inspect: it may be a pattern of shards)
  run,         // RUN, RUN/checkpoints or RUN/config.yaml
  checkpoint,  // a directory of torch.distributed.checkpoint, or a file of torch.save
  model,      // an exported folder: weights and the config.json (or adapter_config.json) of a model
  yaml,       // a configuration: a whole one, or the block `model:` alone
  tensors,    // weights that do not say what they are of: safetensors, folders without config.json
  tokenizer,  // a vocabulary file, or a folder with one and without weights
  shards,     // a tar, or a folder of tars
};

// By the file's content where it has a say, else by its name. Throws ConfigError for what is none
// of these.
PathKind kind_of(const std::string& path);

// Whether a folder has a tokenizer's files.
bool has_vocabulary(const std::string& folder);

// A folder of tars as a list of shards; anything else as it is.
std::string as_shards(const std::string& path);

}  // namespace floe::cli
