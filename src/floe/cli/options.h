// The options of a command: `--name`, `--name VALUE` or `--name=VALUE`, and the words between them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "floe/cli/command.h"

namespace floe::cli {

struct OptionSpec {
  std::string name;  // with its dashes
  bool takes_value = false;
  bool repeats = false;
};

class Options {
 public:
  // Throws ConfigError for an unknown option (with the nearest name), a missing value, or one given
  // twice. Everything behind `--` is a word.
  Options(const std::string& command, const Args& args, const std::vector<OptionSpec>& known);

  const Args& words() const { return words_; }
  bool has(const std::string& name) const { return values_.contains(name); }
  std::optional<std::string> value(const std::string& name) const;
  std::vector<std::string> values(const std::string& name) const;
  // Throws ConfigError that names the option for anything but a number in the range.
  std::int64_t integer(const std::string& name, std::int64_t otherwise, std::int64_t least,
                       std::int64_t most) const;
  double number(const std::string& name, double otherwise) const;

 private:
  std::string command_;
  Args words_;
  std::map<std::string, std::vector<std::string>> values_;
};

// Where floe keeps the configurations that come with it: the folder with strategy/ and experiment/:
// installed beside the program, or that of the source tree it was built from. Empty when neither is
// there.
std::string own_configs();

}  // namespace floe::cli
