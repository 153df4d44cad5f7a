// What a path on the command line of `floe inspect` is.
#pragma once

#include <string>

namespace floe::cli {

enum class PathKind {
  shards,     // tars: a file, a pattern, a list, a pipe, a folder of tars
  tensors,    // safetensors, files of torch.save, folders of weights, directories of checkpoints
  run,        // a run folder
  tokenizer,  // a vocabulary file, or a folder with one and without weights
  model,      // a Hugging Face folder: weights and tokenizer
};

// By the file's content where it has a say, else by its name. What does not exist may be a pattern of
// shards. Throws ConfigError for what cannot be inspected.
PathKind kind_of(const std::string& path);

// A folder of tars as a list of shards; anything else as it is.
std::string as_shards(const std::string& path);

}  // namespace floe::cli
