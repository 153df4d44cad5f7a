#include <iostream>

#include "floe/cli/command.h"

namespace floe::cli {
namespace {

// The version of project() in CMakeLists.txt; a test compares them.
constexpr std::string_view kVersion = "0.1.0";

Exit run(const Args& args) {
  require<ConfigError>(args.empty(), "version takes no arguments, got '", join(args, " "), "'");
  std::cout << "floe " << kVersion << "\n";
  return Exit::done;
}

}  // namespace

const Command kVersionCommand{
    .name = "version",
    .summary = "the version of this program",
    .help = "usage: floe version\n",
    .run = run,
};

}  // namespace floe::cli
