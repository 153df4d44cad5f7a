// The commands of the program `floe`. Adding one: declare its Command below, define it in its own
// file commands/NAME.cc, and name it in the table of commands.cc.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "floe/core/error.h"

namespace floe::cli {

using Args = std::vector<std::string>;

struct Command {
  std::string_view name;
  std::string_view summary;  // one line, for the list of commands
  std::string_view help;     // the whole page: usage, options, an example
  // Gets what stands behind the command's name. A result goes to stdout. Throws floe::Error.
  Exit (*run)(const Args& args);
};

extern const Command kConvertCommand;
extern const Command kDemoCommand;
extern const Command kDiffCommand;
extern const Command kDoctorCommand;
extern const Command kExportCommand;
extern const Command kForwardCommand;
extern const Command kGenerateCommand;
extern const Command kHelpCommand;
extern const Command kInspectCommand;
extern const Command kLaunchCommand;
extern const Command kPlanCommand;
extern const Command kReportCommand;
extern const Command kTrainCommand;
extern const Command kVersionCommand;

// Every command, in the order in which `floe --help` lists them.
const std::vector<const Command*>& commands();

// The command of this name; throws ConfigError with the nearest names when there is none.
const Command& find_command(const std::string& name);

// Runs a whole command line, without the program's name. `floe COMMAND --help` shows the command's
// help; what stands behind `--` or `--exec` is another program's and is not looked at.
Exit run_command_line(const Args& args);

// For commands that end their work in order. From now on the first Ctrl-C or SIGTERM only sets the
// flag that is returned; a second one ends the process.
const std::atomic<bool>& stop_on_signals();

}  // namespace floe::cli
