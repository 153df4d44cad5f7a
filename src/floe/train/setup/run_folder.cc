#include "floe/train/setup/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

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

// Note [Started again]
// With run.resume=never a run begins anew when somebody starts it, and not when its launcher or
// scheduler starts the same job again after a failure: that would throw away what the job has
// trained. The start that begins a run leaves the names of its job in the lock's file; a later one
// that is counted as a start again, of a job of that name, goes on.
struct Restarts {
  const char* count;
  const char* job;
};
constexpr std::array kRestarts = std::to_array<Restarts>({
    {"FLOE_RESTARTS", "FLOE_LAUNCH"},
    {"TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"},
    {"SLURM_RESTART_COUNT", "SLURM_JOB_ID"},
});

// "SLURM_JOB_ID=12345\n"; empty: nobody has named the job.
std::string line_of_job(const char* variable) {
  const char* text = std::getenv(variable);
  std::string job = text ? text : "";
  if (job == "none") job += str(" of ", ::getppid());  // torchrun's, which stays for all its starts
  return job.empty() ? "" : str(variable, "=", job, "\n");
}

std::string names_of_job() {
  std::string names;
  for (const Restarts& known : kRestarts) names += line_of_job(known.job);
  return names;
}

bool is_started_again(const std::string& names_of_begin) {
  return std::any_of(kRestarts.begin(), kRestarts.end(), [&](const Restarts& known) {
    const char* count = std::getenv(known.count);
    const std::string line = line_of_job(known.job);
    return count && std::strtoll(count, nullptr, 10) > 0 && !line.empty() &&
           ("\n" + names_of_begin).find("\n" + line) != std::string::npos;
  });
}

// A disk that is not mounted would look like a run that has saved nothing.
void require_checkpoints(const fs::path& run) {
  const fs::path folder = run / "checkpoints";
  std::error_code ignored;
  require<ConfigError>(!fs::is_symlink(folder, ignored) || fs::is_directory(folder, ignored),
                       "run.dir: ", folder.string(),
                       " is no folder, but a link that leads to none; is its disk mounted?");
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

constexpr std::int64_t kMostOfLock = 1 << 16;
constexpr const char* kGoesOn = "goes on";  // instead of a problem

std::string lock_file(const std::string& folder) { return folder + "/.lock"; }

// The lock goes with the process, however it ends.
int lock_folder(const std::string& folder) {
  const std::string path = lock_file(folder);
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
      if (config.run.resume != "never") require_checkpoints(path_);
      if (config.run.resume == "never") {
        goes_on_ = holds_a_run(path_) && is_started_again(read_text(lock_file(path_), kMostOfLock));
        if (!goes_on_) begin_anew();
      }
    } catch (const fs::filesystem_error& e) {
      report(exit_for(e.code().value()),
             str("run.dir: the folder ", path_, " cannot be made: ", e.code().message()));
    } catch (const Error& e) {
      report(e.exit(), e.what());
    }
    if (found.empty() && goes_on_) found = kGoesOn;
    world.publish("run folder", found);
  } else {
    found = world.hear("run folder", "rank 0 did not open the run's folder");
  }
  goes_on_ = found == kGoesOn;
  if (goes_on_) found.clear();
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
  if (goes_on_ && world.rank() == 0)
    log::info(
        "run.resume is never, but this job began the run itself and is started again: it "
        "goes on");
}

void RunFolder::begin_anew() {
  if (holds_a_run(path_)) {
    ::close(std::exchange(lock_, -1));
    move_aside(path_);
    fs::create_directories(path_);
    lock_ = lock_folder(path_);
  }
  // Not atomically, which would be another file than the one that is locked. A job whose names are
  // cut off is one without a name.
  std::ofstream(lock_file(path_), std::ios::trunc) << names_of_job();
}

void RunFolder::write_config(const std::string& config_yaml) const {
  write_file_atomically(path_ + "/config.yaml", config_yaml);
}

// The log's file stays open: what ends the run is still to be said.
RunFolder::~RunFolder() {
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace floe::train
