// Which checkpoint a run continues from, and which one somebody means who names a run and only
// reads it: commands, and runs that begin from another run's weights.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/store_exchange.h"

namespace floe::checkpoint {

struct Choice {
  std::string path;                      // empty: none
  std::vector<std::string> passed_over;  // a sentence for each one before it
};

// Checkpoints of a run to try, best first: the highest step, `on_exception` before others of its
// step. A manifest that cannot be read becomes a sentence in `passed_over`.
std::vector<std::string> candidates(const std::string& folder,
                                    std::vector<std::string>& passed_over);

// Whether the path is of a run, with checkpoints below it.
bool is_run_folder(const std::string& path);

// Note [Where a run began]
// The state that a run saves says which path it began from (kBeganFrom). Once a run has checkpoints
// that began from the path it is given, these are its own and go before it, whatever is there by
// now: a run that trains on may have moved far beyond.
constexpr const char* kBeganFrom = "began_from";

// Checkpoints to try for a run that begins from `path` (a checkpoint of anybody, or a run folder)
// and has its own in `folder`: its own first, if they began there or are not older, so that a start
// after the first one goes on instead of beginning again.
std::vector<std::string> candidates_from(const std::string& path, const std::string& folder,
                                         std::vector<std::string>& passed_over);

// Collective: tries them in rank 0's order until one passes `validate` on all ranks. `validate`
// throws Error when the checkpoint cannot be used.
Choice choose(const std::vector<std::string>& candidates,
              const std::function<void(const std::string&)>& validate, StoreExchange& ranks);

// ---- is every byte of a checkpoint what was written? ----

// How much of a checkpoint is looked at before it counts as whole.
enum class Reading {
  sizes,  // its manifest, metadata and the sizes of its files
  bytes,  // every byte, against the checksums: as a resumed run does
};

// Note [Shares of a check]
// All bytes of a checkpoint, file after file in the order of ranks, are one line, which is cut into
// equal parts: a rank looks at the files in which its part lies, and at nothing else of theirs. So
// a thousand ranks open a few files each, and not a thousand.

// Reads this part of the bytes of a checkpoint of floe and compares; together the parts are
// everything. Throws CheckpointError that names the file, the tensor and the place of the first
// difference, or a file that is missing, too long, too short, or does not fit its checksums.
void verify(const std::string& checkpoint, const Manifest& manifest, int part = 0, int parts = 1,
            Reading reading = Reading::bytes);

// Throws CheckpointError or DataError for a checkpoint, a directory or a file, that is damaged or
// was not finished. One without floe's manifest (written by others) has no checksums; there its
// sizes must do.
void check_whole(const std::string& checkpoint, Reading reading);

// ---- for those who only read a run ----

// The run that a path stands for: RUN, RUN/checkpoints or RUN/config.yaml. Empty: none of these.
std::string run_at(const std::string& path);

// The run that a checkpoint lies in (RUN/checkpoints/step_N); empty: none.
std::string run_of(const std::string& checkpoint);

struct Newest {
  std::string path;                      // empty: there is none
  std::vector<std::string> passed_over;  // a sentence for each one that would have come before it
};

// The checkpoint that the run itself would continue from: the highest step that is whole.
// Writes nothing: files of a failed run that its next start will put together are passed over.
Newest newest_whole(const std::string& run, Reading reading);

// The same for a configuration that names `path` as weights: a run's newest checkpoint, logged with
// what was passed over; anything else is itself. Throws ConfigError for a run without a usable
// checkpoint.
std::string weights_at(const std::string& path, const std::string& key);

}  // namespace floe::checkpoint
