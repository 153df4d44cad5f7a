// A configuration that is translated from another system's: floe's keys, each with a comment that
// says what it came from, and what has no counterpart.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "floe/schema/value.h"

namespace floe::migrate {

// Without what could end a line: comments and messages do so, and not every reader of YAML has the
// same idea of a line.
std::string one_line(const std::string& text);

// A word as one would type it into a shell, in one line whatever its bytes are.
std::string shell_word(std::string_view word);

// A text as a value that means itself: a "${" in it is no reference.
config::Value text_value(std::string_view text, config::Origin origin = {});

class Page {
 public:
  explicit Page(std::string title) : title_(std::move(title)) {}

  // The value of a dotted key, with the comment above it. A value that was set before is replaced,
  // its comment stays.
  void set(std::string_view key, config::Value value, const std::string& comment);
  // Appends a sentence to the comment of a key or, when it is set, of a block.
  void add_comment(std::string_view key, const std::string& sentence);
  // What has no counterpart, with the reason: "--horovod: floe's ranks find each other ...".
  void leave_out(const std::string& sentence) { left_out_.push_back(sentence); }
  // What should be looked at before a run; told on stderr as well.
  void warn(const std::string& sentence) { warnings_.push_back(sentence); }
  // A sentence or a command that stands before the first key.
  void add_note(const std::string& sentence) { notes_.push_back(sentence); }
  void add_preparation(const std::string& command) { preparations_.push_back(command); }
  // The command of the run up to the name of the file, "floe launch -n 4 -- train ".
  void set_command(const std::string& words) { command_ = words; }
  void set_world(std::optional<int> world) { world_ = world; }
  // That the file is one of several; `others` are the words that stand for the rest.
  void set_others(const std::string& others) { others_ = others; }

  bool has(std::string_view key) const { return tree_.at(key) != nullptr; }
  const config::Value& tree() const { return tree_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // The command that runs the configuration once it is in this file.
  std::string command(const std::string& file) const;
  // YAML whose comments begin with the commands for that file.
  std::string text(const std::string& file) const;

 private:
  std::string title_, command_ = "floe train ", others_;
  std::optional<int> world_;
  config::Value tree_{config::Map()};
  std::map<std::string, std::string> comments_;  // by key
  std::vector<std::string> left_out_, warnings_, notes_, preparations_;
};

}  // namespace floe::migrate
