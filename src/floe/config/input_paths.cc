#include "floe/config/input_paths.h"

#include <filesystem>

#include "floe/core/str.h"

namespace floe::config {
namespace {

namespace fs = std::filesystem;

fs::path normal_absolute(const fs::path& path) {
  std::error_code failed;
  const fs::path whole = fs::absolute(path, failed);
  return (failed ? path : whole).lexically_normal();
}

}  // namespace

bool exists(const std::string& place) {
  std::error_code ignored;
  return fs::exists(place, ignored);
}

std::string file_of(const Origin& origin) {
  return origin.source && origin.line > 0 ? *origin.source : "";
}

std::vector<std::string> input_folders(const std::string& file) {
  std::vector<std::string> folders;
  if (!file.empty()) folders.push_back(normal_absolute(fs::path(file)).parent_path());
  const std::string here = normal_absolute(".").parent_path();
  if (folders.empty() || folders.front() != here) folders.push_back(here);
  return folders;
}

std::string find_input(const std::string& path, const std::string& file, const IsThere& is_there) {
  if (path.empty() || path.starts_with('/')) return path;
  for (const std::string& folder : input_folders(file))
    if (const std::string place = normal_absolute(fs::path(folder) / path).string();
        is_there(place))
      return place;
  return path;
}

std::string not_found(const std::string& path, const std::string& file) {
  std::vector<std::string> places;
  for (const std::string& folder : input_folders(file))
    places.push_back(normal_absolute(fs::path(folder) / path).string());
  if (places.size() == 1) return str("not in the working directory (", places.front(), ")");
  return str("neither beside ", file, " (", places[0], ") nor in the working directory (",
             places[1], ")");
}

}  // namespace floe::config
