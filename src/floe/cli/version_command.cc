#include <iostream>

#include "floe/cli/command.h"
#include "floe/core/version.h"

namespace floe::cli {
namespace {

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
