#include "floe/checkpoint/folder/folders.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>

#include "floe/checkpoint/folder/manifest.h"
#include "floe/checkpoint/save/commit_point.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/file/file.h"

namespace floe::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBeside = ".floe.json";  // of a file's manifest
constexpr std::string_view kReplaced =
    ".tmp-replaced-";  // before the name of what another replaces

[[noreturn]] void fail(const char* what, const std::string& path, int error) {
  throw CheckpointError(str("cannot ", what, " '", path, "': ", std::strerror(error)));
}

// To NAME.1, NAME.2, ….
void move_aside(const std::string& path) {
  std::string place;
  for (int number = 1; place.empty() || path_exists(place); ++number)
    place = str(path, ".", number);
  if (::rename(path.c_str(), place.c_str()) != 0) fail("rename", path, errno);
  log::warn("'", path, "' was no link, but a copy of a checkpoint; it is now '", place, "'");
}

}  // namespace

std::string checkpoints_folder(const std::string& run_folder) {
  return run_folder + "/checkpoints";
}

std::string name_of_step(Layout layout, std::int64_t step) {
  switch (layout) {
    case Layout::full: return str("step_", step, ".pt");
    case Layout::trainable: return str("checkpoint_", step, ".pt");
    default: return str("step_", step);
  }
}

std::optional<std::int64_t> step_of_name(const std::string& name) {
  std::string_view rest = name;
  const bool is_file = rest.ends_with(".pt");
  if (is_file) rest.remove_suffix(3);
  if (rest.starts_with("step_"))
    rest.remove_prefix(5);
  else if (is_file && rest.starts_with("checkpoint_"))
    rest.remove_prefix(11);
  else
    return std::nullopt;
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), step);
  if (rest.empty() || error != std::errc() || end != rest.data() + rest.size() || step < 0)
    return std::nullopt;
  return step;
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("make the folder", path, error.value());
}

void replace(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  // A directory that is not empty cannot be renamed over; the two change their names instead.
  if (errno == EEXIST || errno == ENOTEMPTY) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      remove_quietly(from);
      return;
    }
    return replace_in_two_steps(from, to);
  }
  fail("rename a finished checkpoint to", to, errno);
}

void replace_in_two_steps(const std::string& from, const std::string& to) {
  const fs::path place(to);
  const std::string old =
      (place.parent_path() / str(kReplaced, place.filename().string())).string();
  remove_quietly(old);
  if (::rename(to.c_str(), old.c_str()) != 0) fail("rename", to, errno);
  commit_point("replacing");
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    ::rename(old.c_str(), to.c_str());
    fail("rename a finished checkpoint to", to, error);
  }
  remove_quietly(old);
}

bool last_is_a_copy(const std::string& folder) {
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(fs::path(folder) / kLast, ignored).type();
  return type == fs::file_type::directory || type == fs::file_type::regular;
}

void point_last_to(const std::string& folder, const std::string& name) {
  const std::string link = str(folder, "/", kTemporary, "last-", ::getpid());
  ::unlink(link.c_str());
  if (::symlink(name.c_str(), link.c_str()) != 0) fail("make the link", link, errno);
  commit_point("link made");
  const std::string last = str(folder, "/", kLast);
  if (last_is_a_copy(folder)) move_aside(last);
  if (::rename(link.c_str(), last.c_str()) != 0) fail("rename the link to", last, errno);
}

void remove_quietly(const std::string& path) noexcept {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) log::warn("cannot remove '", path, "': ", error.message());
}

void remove_checkpoint(const std::string& folder, const std::string& name) noexcept {
  try {
    const std::string path = str(folder, "/", name),
                      doomed = str(folder, "/", kTemporary, "old-", name);
    if (::rename(path.c_str(), doomed.c_str()) != 0) {
      log::warn("cannot remove '", path, "': ", std::strerror(errno));
      return;
    }
    commit_point("removing");
    remove_quietly(doomed);
    if (name.ends_with(".pt")) remove_quietly(str(path, kBeside));
  } catch (const std::exception& e) {
    log::warn("cannot remove the checkpoint ", name, ": ", e.what());
  }
}

void remove_leftovers(const std::string& folder) noexcept {
  try {
    for (const std::string& name : file_names_in(folder)) {
      if (!name.starts_with(kReplaced)) continue;
      const fs::path replaced = fs::path(folder) / name,
                     place = fs::path(folder) / name.substr(kReplaced.size());
      if (fs::exists(place) || ::rename(replaced.c_str(), place.c_str()) != 0) continue;
      log::info("'", place.string(), "' is back: a save that was to replace it was interrupted");
    }
    for (const std::string& name : file_names_in(folder)) {
      const bool unfinished = name.find(kTemporary) != std::string::npos;
      const bool orphan =
          name.ends_with(kBeside) && step_of_name(name.substr(0, name.size() - kBeside.size())) &&
          !fs::exists(fs::path(folder) / name.substr(0, name.size() - kBeside.size()));
      if (unfinished || orphan) remove_quietly(str(folder, "/", name));
    }
  } catch (const std::exception& e) {
    log::warn("what interrupted saves have left is not removed: ", e.what());
  }
}

void retire_emergencies(const std::string& folder, const std::string& start) noexcept {
  try {
    for (const std::string& name : file_names_in(folder)) {
      if (name == kEmergency) remove_checkpoint(folder, name);
      if (name.starts_with(kEmergencyPart) && name != kEmergencyPart + start)
        remove_quietly(str(folder, "/", name));
    }
  } catch (const std::exception& e) {
    log::warn("emergency checkpoints that are no longer needed are not removed: ", e.what());
  }
}

std::vector<Listed> list_checkpoints(const std::string& folder) {
  std::vector<Listed> found;
  for (const std::string& name : file_names_in(folder))
    if (const auto step = step_of_name(name)) found.push_back({name, *step});
  std::sort(found.begin(), found.end(), [](const Listed& a, const Listed& b) {
    return a.step != b.step ? a.step > b.step : a.name < b.name;
  });
  return found;
}

void keep_only(const std::string& folder, const CheckpointConfig& config,
               std::int64_t newest) noexcept {
  const auto limit = config.newest_kept();
  if (!limit) return;
  try {
    const std::vector<Listed> all = list_checkpoints(folder);
    std::set<std::string> kept;
    // Later steps than the newest save are of a past that this run went back behind.
    std::int64_t num_kept = 0;
    for (const Listed& checkpoint : all)
      if (checkpoint.step <= newest && num_kept++ < *limit) kept.insert(checkpoint.name);
    if (config.keep_best.n > 0 && config.keep_best.metric) {
      std::vector<std::pair<double, std::string>> ranked;
      for (const Listed& checkpoint : all) try {
          const Manifest manifest = read_manifest(manifest_path(str(folder, "/", checkpoint.name)));
          const auto metric = manifest.metrics.find(*config.keep_best.metric);
          if (metric == manifest.metrics.end()) continue;
          const bool higher = config.keep_best.better == Better::higher;
          ranked.emplace_back(higher ? -metric->second : metric->second, checkpoint.name);
        } catch (const Error& e) {
          log::debug("not ranked: ", e.what());
        }
      std::sort(ranked.begin(), ranked.end());
      for (std::size_t i = 0;
           i < ranked.size() && static_cast<std::int64_t>(i) < config.keep_best.n; ++i)
        kept.insert(ranked[i].second);
    }
    for (const Listed& checkpoint : all)
      if (!kept.contains(checkpoint.name)) {
        if (checkpoint.step > newest)
          log::warn("removing '", folder, "/", checkpoint.name,
                    "': this run went back behind it and has saved step ", newest);
        remove_checkpoint(folder, checkpoint.name);
      }
  } catch (const std::exception& e) {
    log::warn("older checkpoints stay: ", e.what());
  }
}

}  // namespace floe::checkpoint
