// How the programs that a Python script of this folder starts with a CONFIG.json begin and end.
#pragma once

#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::bench {

inline nlohmann::json read_config(const std::string& path) {
  std::ifstream file(path);
  require<ConfigError>(file.good(), "cannot read ", path);
  return nlohmann::json::parse(file);
}

// For main: an error is one sentence and exit code 1.
inline int run_program(int argc, char** argv, int (*run)(const std::vector<std::string>&)) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    log::error(e.what());
    return 1;
  }
}

}  // namespace floe::bench
