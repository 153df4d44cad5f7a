#include "floe/comm/shared_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <thread>

#include "floe/core/error.h"
#include "floe/core/str.h"
#include "floe/core/unique_fd.h"

namespace floe::comm {
namespace {

std::string told(World& world, const std::string& key, int rank) {
  return world.hear(key,
                    str(world.name_of(rank), " has not tried the folder that all ranks share"));
}

}  // namespace

std::optional<FolderProblem> find_folder_problem(World& world, const std::string& folder,
                                                 std::chrono::milliseconds patience) {
  if (world.size() == 1) return std::nullopt;
  const std::string prefix = str("shared folder/", folder, "/");
  // A name of this start: a file that an earlier one has left behind proves nothing.
  if (world.rank() == 0) {
    std::random_device device;
    world.publish(prefix + "name", str(std::hex, device(), device()));
  }
  const std::string name = told(world, prefix + "name", 0);
  const auto file_of = [&](int rank) { return str(folder, "/.floe-", name, "-", rank); };
  const std::string own = file_of(world.rank());
  FolderProblem problem;
  if (const UniqueFd fd{::open(own.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)}; !fd)
    problem.error = errno;
  world.publish(prefix + std::to_string(world.rank()), problem.error == 0 ? "written" : "");

  const auto end = std::chrono::steady_clock::now() + patience;
  const int others = world.rank() == 0 ? world.size() : 1;
  for (int rank = 0; rank < others && problem.unseen < 0; ++rank) {
    if (rank == world.rank() || told(world, prefix + std::to_string(rank), rank).empty()) continue;
    const std::string file = file_of(rank);
    while (::access(file.c_str(), F_OK) != 0 && problem.unseen < 0) {
      if (std::chrono::steady_clock::now() > end) problem.unseen = rank;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  world.group()->barrier("all have looked into the shared folder");
  if (problem.error == 0) ::unlink(own.c_str());
  if (problem.error == 0 && problem.unseen < 0) return std::nullopt;
  return problem;
}

}  // namespace floe::comm
