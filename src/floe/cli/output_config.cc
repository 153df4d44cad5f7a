#include "floe/cli/output_config.h"

#include <filesystem>
#include <iostream>

#include "floe/core/error.h"
#include "floe/io/file/file.h"

namespace floe::cli {
namespace {

namespace fs = std::filesystem;

}  // namespace

OutputConfig::OutputConfig(const std::string& command, const std::string& path, bool replace,
                           const std::vector<std::string>& inputs)
    : path_(path) {
  if (is_stdout()) return;
  require<ConfigError>(!path.empty(), command, ": --output names no file");
  std::error_code ignored;
  const fs::path target = behind_links(path);
  require<ConfigError>(!path.ends_with('/') && !fs::is_directory(target, ignored), command,
                       ": --output '", path, "' is a folder; name a file in it");
  require<ConfigError>(path.ends_with(".yaml") || path.ends_with(".yml"), command, ": --output '",
                       path, "' must end in .yaml, by which other commands know a configuration");
  require<ConfigError>(path.find('\n') == std::string::npos, command,
                       ": --output has a line break in its name");
  const fs::path folder = fs::absolute(target).parent_path();
  require<ConfigError>(fs::is_directory(folder, ignored), command, ": there is no folder '",
                       folder.string(), "' to write '", path, "' into");
  if (!fs::exists(target, ignored)) return;
  require<ConfigError>(fs::is_regular_file(target, ignored), command, ": --output '", path,
                       "' is no ordinary file; choose another name");
  for (const std::string& input : inputs)
    require<ConfigError>(!fs::equivalent(target, input, ignored), command, ": --output '", path,
                         "' would replace what the command reads; choose another name");
  require<ConfigError>(replace, command, ": '", path,
                       "' exists; choose another name with --output, or replace it with --force");
}

std::string OutputConfig::as_argument() const {
  return path_.starts_with('-') && !is_stdout() ? "./" + path_ : path_;
}

void OutputConfig::write(const std::string& text) const {
  if (is_stdout())
    std::cout << text;
  else
    write_file_atomically(path_, text);
}

}  // namespace floe::cli
