#include "floe/convert/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"

namespace floe::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kMostJournalBytes = std::int64_t{1} << 30;

json to_json(const FinishedShard& shard) {
  return {{"shard", shard.name},
          {"bytes", shard.bytes},
          {"next_zip", shard.next.zip},
          {"next_line", shard.next.line},
          {"counts", shard.counts}};
}

FinishedShard shard_from(const json& line) {
  return {line.at("shard"),
          line.at("bytes"),
          {line.at("next_zip"), line.at("next_line")},
          line.at("counts").get<ConvertCounts>()};
}

// The first setting that differs, in words.
std::string difference(const json& then, const json& now) {
  for (const auto& [key, value] : now.items())
    if (!then.is_object() || !then.contains(key) || then[key] != value)
      return str(key, " was ",
                 then.is_object() && then.contains(key) ? shown(then[key]) : "unknown",
                 " and is now ", shown(value));
  return "the settings are others";
}

}  // namespace

ConvertJournal::ConvertJournal(const std::string& folder, const std::string& settings)
    : folder_(folder), settings_(settings) {
  std::error_code error;
  fs::create_directories(folder, error);
  require<ConfigError>(!error, "cannot make the folder '", folder, "': ", error.message());
  lock();
  try {
    read();
    remove_unfinished();
    write();
  } catch (...) {
    ::close(lock_fd_);
    throw;
  }
}

ConvertJournal::~ConvertJournal() { ::close(lock_fd_); }

void ConvertJournal::lock() {
  const std::string name = folder_ + "/convert.lock";
  lock_fd_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  require<ConfigError>(lock_fd_ >= 0, "cannot write in '", folder_, "': ", std::strerror(errno));
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return;
  ::close(lock_fd_);
  throw ConfigError(str("another conversion into '", folder_, "' is running; wait for its end"));
}

void ConvertJournal::read() {
  if (!fs::exists(path())) {
    for (const auto& entry : fs::directory_iterator(folder_))
      require<ConfigError>(entry.path().extension() != ".tar", "'", folder_,
                           "' holds shards that this command did not write, such as ",
                           entry.path().filename().string(), "; name an empty folder");
    return;
  }
  std::istringstream lines(read_text(path(), kMostJournalBytes));
  std::string line;
  std::getline(lines, line);
  const json then = parse_json(line, path()), now = json::parse(settings_);
  require<ConfigError>(then == now, "the conversion in '", folder_,
                       "' was begun with other settings: ", difference(then, now),
                       "; use the same, or another folder");
  try {
    while (std::getline(lines, line)) {
      const json row = parse_json(line, path());
      if (row.contains("complete")) {
        complete_ = true;
        return;
      }
      FinishedShard shard = shard_from(row);
      std::error_code error;
      if (static_cast<std::int64_t>(fs::file_size(folder_ + "/" + shard.name, error)) !=
          shard.bytes)
        return;
      shards_.push_back(std::move(shard));
    }
  } catch (const json::exception& error) {
    throw DataError(str("'", path(), "' is damaged (", error.what(), "); remove the folder"));
  }
}

// Files of a run that was killed, and shards behind one that is missing.
void ConvertJournal::remove_unfinished() const {
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    const bool known = std::any_of(shards_.begin(), shards_.end(),
                                   [&](const FinishedShard& shard) { return shard.name == name; });
    if (name.find(".tar.tmp-") != std::string::npos || name.starts_with("convert.jsonl.tmp-") ||
        (entry.path().extension() == ".tar" && !known))
      fs::remove(entry.path());
  }
}

void ConvertJournal::write() const {
  std::string text = settings_ + "\n";
  for (const FinishedShard& shard : shards_) text += to_json(shard).dump() + "\n";
  if (complete_) text += json{{"complete", true}}.dump() + "\n";
  write_file_atomically(path(), text);
}

void ConvertJournal::add(const FinishedShard& shard, bool is_last) {
  shards_.push_back(shard);
  complete_ = is_last;
  write();
}

}  // namespace floe::convert
