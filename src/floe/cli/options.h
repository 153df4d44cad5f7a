// The options of a command: `--name`, `--name VALUE` or `--name=VALUE`, and the words between them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "floe/cli/command.h"
#include "floe/schema/codec.h"

namespace floe::cli {

class Options {
 public:
  // anywhere: options and words in any order, everything behind `--` is a word. leading: what
  // stands behind the first word, `--` or the option `last` is another command's and left alone.
  enum class Order { anywhere, leading };

  // Throws ConfigError for an option that is not among the command's (with the nearest name), a
  // missing value, or one given twice.
  Options(const Command& command, const Args& args, Order order = Order::anywhere,
          std::string_view last = {});

  const Args& words() const { return words_; }
  bool has(const std::string& name) const { return values_.contains(name); }
  std::optional<std::string> value(const std::string& name) const;
  std::vector<std::string> values(const std::string& name) const;
  // Throws ConfigError that names the option for anything but a number in the range.
  std::int64_t integer(const std::string& name, std::int64_t otherwise, std::int64_t least,
                       std::int64_t most) const;
  double number(const std::string& name, double otherwise) const;
  // The name of a file that is written over what is there, so that it must be one of its kind: in
  // `--html a.tar b.tar` the page's name was forgotten. Throws ConfigError for another ending.
  std::optional<std::string> written(const std::string& name, const std::string& ending) const;

 private:
  std::string command_;
  Args words_;
  std::map<std::string, std::vector<std::string>> values_;
};

// Keys of a configuration that a command takes as key=value.
struct KeySection {
  std::string heading;  // on the help page; empty: not listed there
  std::vector<config::FieldInfo> fields;
};

// Where floe keeps the configurations that come with it: the folder with strategy/ and experiment/:
// installed beside the program, or that of the source tree it was built from. Empty when neither is
// there.
std::string own_configs();

}  // namespace floe::cli
