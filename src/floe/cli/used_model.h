// Using what was trained: from a path on the command line and key=value to a model
// and its weights.
//
// Note [What a model is]
//   RUN                      the newest checkpoint that is whole, where the run itself would go on
//   a checkpoint             that one, and the model block that it says it was trained with
//   an exported folder       its weights, and the model that its config.json describes
//   a YAML                   the block `model:`, or a file that is nothing else
// Weights that a checkpoint refers to instead of holding them are read from the files of its model
// block, after a comparison of their digests.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "floe/cli/command.h"
#include "floe/config/load.h"
#include "floe/models/build.h"
#include "floe/models/model_config.h"

namespace floe::cli {

// What a path on the command line is. All commands ask here, so that a path means the same to each.
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

// The words of a command line: paths, and changes of the configuration (key=value, ++key=value,
// ~key). What exists is a path, whatever its name looks like.
struct Words {
  Args paths, changes;
};
Words split_words(const Args& words);
// The keys of such changes, which help pages do not list again.
std::vector<KeySection> keys_of_a_run();

// A path as a command takes it.
struct Located {
  PathKind kind = PathKind::nothing;
  std::string path;  // as given; of a run its folder
  // Of a run the newest whole one, of a checkpoint or plain weights itself; else empty.
  std::string checkpoint;
};

// Throws ConfigError, one sentence, where there is nothing at this path.
void require_path(const std::string& command, const std::string& path);

enum class Wanted {
  weights,  // checkpoints are read and compared with their checksums
  config,   // a run need not have a checkpoint
};

// Throws ConfigError, one sentence, for a path that is nothing of Note [What a model is] and no
// plain weights, for a run without a usable checkpoint, and for a damaged checkpoint. Logs which
// checkpoints of a run were passed over and why.
Located locate(const std::string& command, const std::string& path, Wanted wanted);
// "using the newest checkpoint of 'runs/a': 'runs/a/checkpoints/step_20'", for a run.
void log_choice(const Located& located);

// Whether a folder of kind `model` is of a model that floe can build.
bool is_known_model(const std::string& folder);

struct UsedModel {
  models::ModelConfig config;  // to be built: files are there, weights are read
  std::uint64_t seed = 0;
  std::vector<std::string> trained;  // patterns of what trained; empty: the model's own rule
  // What the checkpoint says it holds beyond the frozen base, trained or not; empty: it does not
  // say.
  std::set<std::string> kept;
  std::string origin;      // the file that says so
  std::string checkpoint;  // whose weights win over those of the files; empty: none
};

// The configuration below a path, with changes: for floe plan, and the functions below. Null when
// nothing tells of which model the weights are.
std::optional<config::Layers> layers_of(const Located& located, const Args& changes);

// Null when nothing tells of which model the weights are. `model_yaml`: a YAML that tells, before
// all others; empty: none. Throws ConfigError for keys that do not exist or have no effect here,
// and for files that are gone, with the key that can say where they are now.
std::optional<UsedModel> find_model(const std::string& command, const Located& located,
                                    const Args& changes, const std::string& model_yaml = "");

// The same for a command that cannot do without.
UsedModel require_model(const std::string& command, const Located& located, const Args& changes);

// The configuration that a checkpoint itself keeps, else that of the run that it lies in; nothing:
// neither is there.
std::optional<config::Value> config_of(const std::string& checkpoint);

// Checks the frozen base and puts the model together. `trained`: weights instead of those of
// used.checkpoint.
models::BuiltModel build(const UsedModel& used,
                         std::shared_ptr<const TensorSource> trained = nullptr);

}  // namespace floe::cli
