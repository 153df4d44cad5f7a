// RUN/wandb/offline-run-DATE-ID/run-ID.wandb: a W&B run on disk, which `wandb sync RUN/wandb` of the
// wandb package uploads, also while the run goes on.
//
// One RUN is one W&B run, however often it is resumed: the id lies in RUN/wandb/run-id, and a resumed
// run goes on in the same file, without the rows beyond the step that it resumes from.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "floe/observe/sinks/append_file.h"
#include "floe/observe/sinks/logger.h"
#include "floe/observe/sinks/wandb_records.h"
#include "floe/observe/sinks/wandb_upload.h"

namespace floe::metrics {

class WandbLogger : public Logger {
 public:
  // Throws ConfigError for a project name that W&B does not take. `upload_every_s`: uploads the run while
  // it goes on (see wandb_upload.h); null: never.
  explicit WandbLogger(const RunInfo& run, std::optional<double> upload_every_s = std::nullopt);
  void write(const Record& record) override;
  void add_files(const std::string& path, const std::string& name) override;
  void finish(int exit_code) override;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  // Makes the file: its first records, and what stays of an older one.
  void start_file(const RunInfo& run, const std::filesystem::path& path, bool id_was_known);
  // Adds the entry of a record to `bytes`, which will go to the end of the file.
  void put(std::string& bytes, wandb::Kind kind, std::string_view message);
  // Takes away the marks of `wandb sync`, so that the next one uploads what has been added.
  void forget_upload() const;
  double runtime_s(double time_s) const { return earlier_runtime_s_ + time_s - session_start_s_; }

  std::filesystem::path folder_;
  std::string id_;
  std::unique_ptr<AppendFile> file_;
  std::unique_ptr<WandbUpload> upload_;  // null: none
  std::int64_t num_records_ = 0;
  double session_start_s_ = 0;    // of this process
  double earlier_runtime_s_ = 0;  // of the processes before it, up to the step that was resumed
};

}  // namespace floe::metrics
