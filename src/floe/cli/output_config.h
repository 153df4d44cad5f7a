// A configuration that a command writes because its user asked for it by name.
#pragma once

#include <string>
#include <vector>

namespace floe::cli {

class OutputConfig {
 public:
  // Looks before any work is done. `-` is stdout. Throws ConfigError that names the command where
  // the path is no place for a configuration: a folder or a device, without a folder, one of the
  // `inputs`, taken while `replace` is not set, or of a name that other commands take for no YAML.
  OutputConfig(const std::string& command, const std::string& path, bool replace,
               const std::vector<std::string>& inputs);

  bool is_stdout() const { return path_ == "-"; }
  // As it stands on a command line: a name that begins with a dash is no option.
  std::string as_argument() const;
  // Whole or not at all. Where the path is a link, to what it leads to.
  void write(const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace floe::cli
