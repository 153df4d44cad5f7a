#include "floe/io/atomic_folder.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <utility>

#include "floe/core/error.h"

namespace floe {
namespace {

namespace fs = std::filesystem;

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

void check(const std::error_code& error, const char* what, const std::string& path) {
  require(!error, "cannot ", what, " '", path, "': ", error.message());
}

}  // namespace

AtomicFolder::AtomicFolder(std::string target, Existing existing)
    : target_(without_slash(std::move(target))) {
  std::error_code error;
  require<ConfigError>(existing == Existing::replace || !fs::exists(target_, error), "'", target_,
                       "' is there already; name a new folder, or replace it with --force");
  static std::atomic<unsigned> counter{0};
  temporary_ = str(target_, ".tmp-", ::getpid(), "-", counter++);
  fs::create_directories(temporary_, error);
  check(error, "create the folder", temporary_);
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  std::error_code error;
  const std::string old = temporary_ + ".old";
  const bool replaces = fs::exists(target_, error);
  if (replaces) {
    fs::rename(target_, old, error);
    check(error, "rename", target_);
  }
  fs::rename(temporary_, target_, error);
  check(error, "rename a folder to", target_);
  committed_ = true;
  if (replaces) {
    fs::remove_all(old, error);
    check(error, "remove", old);
  }
}

}  // namespace floe
