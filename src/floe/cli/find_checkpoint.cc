#include "floe/cli/find_checkpoint.h"

#include <filesystem>

#include "floe/checkpoint/folders.h"
#include "floe/core/error.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

std::string newest_in(const std::string& folder) {
  std::error_code ignored;
  if (const fs::path last = fs::path(folder) / checkpoint::kLast; fs::exists(last, ignored))
    return last.string();
  const auto listed = checkpoint::list_checkpoints(folder);
  require<CheckpointError>(!listed.empty(), "there is no checkpoint in '", folder,
                           "' (no 'last', no 'step_N')");
  return (fs::path(folder) / listed.front().name).string();
}

}  // namespace

bool is_run_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(checkpoint::checkpoints_folder(path), ignored);
}

std::string find_checkpoint(const std::string& path) {
  std::error_code ignored;
  require<ConfigError>(fs::exists(path, ignored), "there is no checkpoint '", path, "'");
  if (is_run_folder(path)) return newest_in(checkpoint::checkpoints_folder(path));
  const fs::path clean = fs::path(path + "/").parent_path();
  if (fs::is_directory(clean, ignored) && clean.filename() == "checkpoints")
    return newest_in(clean.string());
  return path;
}

std::string run_of_checkpoint(const std::string& checkpoint) {
  std::error_code error;
  const fs::path place = fs::canonical(checkpoint, error);
  if (error || place.parent_path().filename() != "checkpoints") return "";
  return place.parent_path().parent_path().string();
}

}  // namespace floe::cli
