#include <iomanip>
#include <iostream>

#include "floe/cli/command.h"

namespace floe::cli {
namespace {

Exit run(const Args& args) {
  require<ConfigError>(args.size() <= 1, "help takes one command's name, got '", join(args, " "),
                       "'");
  if (!args.empty()) {
    std::cout << find_command(args[0]).help;
    return Exit::done;
  }
  std::cout << "floe trains partly frozen models, every byte of their state sharded over ranks.\n\n"
               "usage: floe COMMAND ...\n\n";
  for (const Command* command : commands())
    std::cout << "  " << std::left << std::setw(10) << command->name << command->summary << "\n";
  std::cout << "\n'floe COMMAND --help' tells more about one of them.\n";
  return Exit::done;
}

}  // namespace

const Command kHelpCommand{
    .name = "help",
    .summary = "this list, or what one command does",
    .help = "usage: floe help [COMMAND]\n",
    .run = run,
};

}  // namespace floe::cli
