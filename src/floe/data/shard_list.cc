#include "floe/data/shard_list.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "floe/core/error.h"
#include "floe/core/names.h"
#include "floe/io/file.h"

namespace floe::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxListBytes = std::int64_t{256} << 20;
constexpr std::string_view kPipe = "pipe:", kS3 = "s3://";

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_remote(std::string_view part) { return part.starts_with(kPipe) || part.starts_with(kS3); }

// A word for the shell; the usual characters of bucket and key names need no quotes.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=+@%,";
  if (text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::vector<std::string> glob_files(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  std::sort(files.begin(), files.end());
  return files;
}

// What there is in place of `path`, for the message that it is missing.
std::string what_is_there(const std::string& path) {
  std::error_code ignored;
  fs::path folder = fs::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (!fs::is_directory(folder, ignored)) return str("there is no folder '", folder.string(), "'");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (names.size() < 100000) names.push_back(entry.path().filename().string());
  if (names.empty()) return str("the folder '", folder.string(), "' is empty");
  std::sort(names.begin(), names.end());
  const auto near = nearest_names(fs::path(path).filename().string(), names, 1);
  const auto tar = std::find_if(names.begin(), names.end(),
                                [](const std::string& name) { return name.ends_with(".tar"); });
  const std::string& example =
      near.empty() ? (tar == names.end() ? names.front() : *tar) : near.front();
  return str("the folder '", folder.string(), "' has ", names.size(), " files, such as '", example,
             "'");
}

void expand_local(const std::string& part, std::vector<std::string>& shards) {
  if (exists(part)) {  // a name that looks like a pattern
    shards.push_back(part);
    return;
  }
  const std::size_t before = shards.size();
  const auto names = expand_braces(part);
  bool any = false;
  for (const std::string& name : names) {
    if (name.find_first_of("*?[") == std::string::npos || exists(name)) {
      any = any || exists(name);
      shards.push_back(name);
    } else {
      const auto files = glob_files(name);
      any = any || !files.empty();
      shards.insert(shards.end(), files.begin(), files.end());
    }
  }
  const bool is_pattern = part.find_first_of("{*?[") != std::string::npos;
  require<ConfigError>(any || !is_pattern, "no shard matches '", part, "': ",
                       what_is_there(shards.size() > before ? shards[before] : names.front()),
                       "; mend the path of the shards");
}

void expand_part(const std::string& part, std::vector<std::string>& shards, bool may_be_list) {
  if (part.starts_with('@') && may_be_list) {
    std::istringstream lines(read_text(part.substr(1), kMaxListBytes));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty() && !line.starts_with('#')) expand_part(line, shards, false);
    }
  } else if (part.starts_with(kPipe)) {
    for (auto& command : expand_braces(part)) shards.push_back(std::move(command));
  } else if (part.starts_with(kS3)) {
    for (const auto& url : expand_braces(part))
      shards.push_back(str(kPipe, "aws s3 cp ", shell_word(url), " -"));
  } else {
    expand_local(part, shards);
  }
}

}  // namespace

std::vector<std::string> expand_shards(std::string_view text) {
  std::vector<std::string> shards;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find("::", start), text.size());
    const std::string part(text.substr(start, end - start));
    require<ConfigError>(!part.empty(), "the list of shards '", text.substr(0, 200),
                         "' has an empty part; write PATH::PATH");
    try {
      expand_part(part, shards, true);
    } catch (const DataError& error) {
      throw ConfigError(str("the list of shards '", part, "' cannot be read: ", error.what()));
    }
    start = end + 2;
  }
  require<ConfigError>(!shards.empty(), "the list of shards '", text.substr(0, 200),
                       "' has no shard in it");
  const bool any = std::any_of(shards.begin(), shards.end(), [](const std::string& shard) {
    return is_remote(shard) || exists(shard);
  });
  require<ConfigError>(any,
                       shards.size() == 1
                           ? "there is no shard '"
                           : str("none of the ", shards.size(), " shards exists, such as '"),
                       shards.front(), "': ", any ? "" : what_is_there(shards.front()));
  return shards;
}

}  // namespace floe::data
