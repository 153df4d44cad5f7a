// What is wrong with a configuration: all of it, not only the first thing.
#pragma once

#include <string>
#include <vector>

#include "floe/config/value.h"
#include "floe/core/error.h"

namespace floe::config {

class Problems {
 public:
  void add(const Origin& origin, const std::string& sentence);
  std::size_t count() const { return lines_.size(); }
  // One ConfigError with one line per problem, "train.yaml:3:9: train.steps is 0, but ...".
  void throw_if_any() const;

 private:
  std::vector<std::string> lines_;
};

// A place in the tree while it is read: its dotted path, and where problems go.
struct Place {
  std::string path;
  Problems& problems;

  Place key(const std::string& name) const {
    return {path.empty() ? name : path + "." + name, problems};
  }
  Place item(std::size_t index) const { return {str(path, "[", index, "]"), problems}; }
  // Adds "origin: path parts..." and returns false, so that readers can `return place.fail(...)`.
  template <class... Parts>
  bool fail(const Value& value, const Parts&... parts) const {
    problems.add(value.origin, str(path.empty() ? "the configuration" : path, " ", parts...));
    return false;
  }
};

}  // namespace floe::config
