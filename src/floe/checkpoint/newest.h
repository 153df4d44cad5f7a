// The checkpoint that somebody means who names a run, for those who only read it: commands, and runs
// that begin from another run's weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace floe::checkpoint {

// How much of a checkpoint is looked at before it counts as whole.
enum class Reading {
  sizes,  // its manifest, metadata and the sizes of its files
  bytes,  // every byte, against the checksums: as a resumed run does
};

// The run that a path stands for: RUN, RUN/checkpoints or RUN/config.yaml. Empty: none of these.
std::string run_at(const std::string& path);

// The run that a checkpoint lies in (RUN/checkpoints/step_N); empty: none.
std::string run_of(const std::string& checkpoint);

// Throws CheckpointError or DataError for a checkpoint, a directory or a file, that is damaged or was not
// finished. One without floe's manifest (written by others) has no checksums; there its sizes must do.
void check_whole(const std::string& checkpoint, Reading reading);

struct Newest {
  std::string path;                      // empty: there is none
  std::vector<std::string> passed_over;  // a sentence for each one that would have come before it
};

// The checkpoint that the run itself would continue from (resume.h): the highest step that is whole.
// Writes nothing: files of a failed run that its next start will put together are passed over.
Newest newest_whole(const std::string& run, Reading reading);

// The same for a configuration that names `path` as weights: a run's newest checkpoint, logged with what
// was passed over; anything else is itself. Throws ConfigError for a run without a usable checkpoint.
std::string weights_at(const std::string& path, const std::string& key);

}  // namespace floe::checkpoint
