#include "floe/data/shards/shard_list.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "floe/config/input_paths.h"
#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/core/names.h"
#include "floe/io/file/file.h"

namespace floe::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxListBytes = std::int64_t{256} << 20;
constexpr std::string_view kPipe = "pipe:", kS3 = "s3://";

using config::exists;

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

bool is_wild(const std::string& name) { return name.find_first_of("*?[") != std::string::npos; }

// Whether a local part names a file that is there.
bool names_a_file(const std::string& part) {
  if (exists(part)) return true;
  for (const std::string& name : expand_braces(part))
    if (exists(name) || (is_wild(name) && !glob_files(name).empty())) return true;
  return false;
}

// A folder whose own characters mean nothing in a pattern.
std::string quoted(const std::string& folder) {
  std::string text;
  for (const char c : folder)
    if (c == '{' || c == '}' || c == ',' || c == '\\')
      text += std::string("\\") + c;
    else if (c == '*' || c == '?' || c == '[')
      text += std::string("[") + c + "]";
    else
      text += c;
  return text;
}

bool is_relative(std::string_view part) {
  if (part.starts_with('@')) part.remove_prefix(1);
  return !is_remote(part) && !part.starts_with('/');
}

std::string resolve_part(const std::string& part, const std::string& file) {
  if (!is_relative(part)) return part;
  if (part.starts_with('@')) return "@" + config::find_input(part.substr(1), file);
  for (const std::string& folder : config::input_folders(file)) {
    if (folder.find("::") != std::string::npos) continue;  // that would end a part
    // A name that looks like a pattern comes before the pattern.
    std::string name = fs::path(folder + "/" + part).lexically_normal().string();
    if (exists(name)) return name;
    const std::string pattern = fs::path(quoted(folder) + "/" + part).lexically_normal().string();
    if (names_a_file(pattern)) return pattern;
  }
  return part;
}

std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find("::", start), text.size());
    parts.emplace_back(text.substr(start, end - start));
    start = end + 2;
  }
  return parts;
}

void expand_local(const std::string& part, std::vector<std::string>& shards) {
  if (exists(part)) {  // a name that looks like a pattern
    shards.push_back(part);
    return;
  }
  const std::size_t before = shards.size();
  const auto names = expand_braces(part);
  bool any = false;
  std::vector<std::string> unmatched;
  for (const std::string& name : names) {
    if (!is_wild(name) || exists(name)) {
      any = any || exists(name);
      shards.push_back(name);
    } else {
      const auto files = glob_files(name);
      any = any || !files.empty();
      if (files.empty()) unmatched.push_back(name);
      shards.insert(shards.end(), files.begin(), files.end());
    }
  }
  const bool is_pattern = part.find_first_of("{*?[") != std::string::npos;
  require<ConfigError>(any || !is_pattern, "no shard matches '", part, "': ",
                       what_is_there(shards.size() > before ? shards[before] : names.front()),
                       "; mend the path of the shards");
  if (!unmatched.empty() && names.size() > 1)
    log::warn("data: of '", part, "' no file matches '", unmatched.front(), "'",
              unmatched.size() > 1 ? str(" and ", unmatched.size() - 1, " more") : "");
}

void expand_part(const std::string& part, std::vector<std::string>& shards, bool may_be_list) {
  if (part.starts_with('@') && may_be_list) {
    std::istringstream lines(read_text(part.substr(1), kMaxListBytes));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty() && !line.starts_with('#'))
        expand_part(line.starts_with('@') ? line : resolve_part(line, part.substr(1)), shards,
                    false);
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
  for (const std::string& part : parts_of(text)) {
    require<ConfigError>(!part.empty(), "the list of shards '", text.substr(0, 200),
                         "' has an empty part; write PATH::PATH");
    try {
      expand_part(part, shards, true);
    } catch (const DataError& error) {
      throw ConfigError(str("the list of shards '", part, "' cannot be read: ", error.what()));
    }
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

std::string resolve_shards(std::string_view text, const std::string& file) {
  std::vector<std::string> parts;
  for (const std::string& part : parts_of(text)) parts.push_back(resolve_part(part, file));
  return join(parts, "::");
}

std::optional<std::string> unfound_part(std::string_view text) {
  const std::vector<std::string> parts = parts_of(text);
  const auto unfound = [](const std::string& part) { return !part.empty() && is_relative(part); };
  const bool all = std::all_of(parts.begin(), parts.end(), unfound);
  for (const std::string& part : parts)
    if (unfound(part) && (all || part.find_first_of("@{*?[") != std::string::npos)) return part;
  return std::nullopt;
}

}  // namespace floe::data
