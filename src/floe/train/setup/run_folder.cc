#include "floe/train/setup/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "floe/comm/shared_folder.h"
#include "floe/core/log.h"
#include "floe/io/file/file.h"
#include "floe/observe/sinks/sink.h"

namespace floe::train {
namespace {

namespace fs = std::filesystem;

// A disk that is full or broken is a failure; anything else is a folder that cannot be meant.
Exit exit_for(int error) {
  const bool disk = error == ENOSPC || error == EDQUOT || error == EIO;
  return disk ? Exit::failed : Exit::usage;
}

bool holds_a_run(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / "metrics.jsonl", ignored)) return true;
  const fs::path checkpoints = folder / "checkpoints";
  return fs::is_directory(checkpoints, ignored) && !fs::is_empty(checkpoints, ignored);
}

void move_aside(const fs::path& folder) {
  for (int number = 1;; ++number) {
    const fs::path place = str(folder.string(), ".", number);
    if (fs::exists(place)) continue;
    fs::rename(folder, place);
    log::info("run.resume is never: the earlier run in ", folder.string(), " is now in ",
              place.string());
    return;
  }
}

// The lock goes with the process, however it ends.
int lock_folder(const std::string& folder) {
  const std::string path = folder + "/.lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (const int error = errno; fd < 0)
    throw Error(str("run.dir: ", path, " cannot be written: ", std::strerror(error)),
                exit_for(error));
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(fd);
    // Some network file systems have no locks; then nobody can be told apart.
    require<ConfigError>(error != EWOULDBLOCK, "another run is at work in ", folder,
                         "; choose another run.name, or wait for it");
    return -1;
  }
  return fd;
}

// Collective. Checkpoints are put together from what all ranks write into the folder: each must be
// able to, and it must be the same one.
void check_shared(const std::string& folder, comm::World& world) {
  constexpr std::chrono::milliseconds kPatience{65'000};
  const auto problem =
      comm::find_folder_problem(world, folder, std::min(kPatience, world.timeout() / 2));
  if (!problem) return;
  const std::string here = world.name_of(world.rank());
  if (problem->error != 0)
    throw Error(
        str("run.dir: ", here, " cannot write into ", folder, ": ", std::strerror(problem->error),
            "; all ranks need the same folder, and to write there"),
        exit_for(problem->error));
  throw ConfigError(str("run.dir: ", here, " does not see what ", world.name_of(problem->unseen),
                        " has written into ", folder,
                        ": they have different folders of this name; choose one on a file system "
                        "that all hosts share"));
}

}  // namespace

RunFolder::RunFolder(const RunConfig& config, comm::World& world) : path_(config.run.folder()) {
  // What rank 0 found, for all: an exit code and a sentence.
  std::string found;
  if (world.rank() == 0) {
    const auto report = [&found](Exit exit, const std::string& problem) {
      found = str(static_cast<int>(exit), problem);
    };
    try {
      observe::check_sinks(config.log.sinks);  // before anything is made or replaced
      fs::create_directories(path_);
      lock_ = lock_folder(path_);
      if (config.run.resume == "never" && holds_a_run(path_)) {
        ::close(std::exchange(lock_, -1));
        move_aside(path_);
        fs::create_directories(path_);
        lock_ = lock_folder(path_);
      }
    } catch (const fs::filesystem_error& e) {
      report(exit_for(e.code().value()),
             str("run.dir: the folder ", path_, " cannot be made: ", e.code().message()));
    } catch (const Error& e) {
      report(e.exit(), e.what());
    }
    world.publish("run folder", found);
  } else {
    found = world.hear("run folder", "rank 0 did not open the run's folder");
  }
  if (!found.empty()) throw Error(found.substr(1), static_cast<Exit>(found[0] - '0'));
  const std::string logs = path_ + "/logs";
  std::error_code failed;
  fs::create_directories(logs, failed);
  if (failed)
    throw Error(str("run.dir: ", logs, " cannot be made on ", world.name_of(world.rank()), ": ",
                    failed.message(), "; all ranks need the same folder"),
                exit_for(failed.value()));
  check_shared(path_, world);
  log::set_file(str(logs, "/rank_", world.rank(), ".log"));
}

void RunFolder::write_config(const std::string& config_yaml) const {
  write_file_atomically(path_ + "/config.yaml", config_yaml);
}

// The log's file stays open: what ends the run is still to be said.
RunFolder::~RunFolder() {
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace floe::train
