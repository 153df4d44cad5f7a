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

// A row of a command's options: what the command takes, what its help page says and what shells
// complete. A row whose name has no dash is only said on the help page; one without a name leaves a
// line empty there.
struct OptionRow {
  std::string name;  // with its dashes
  // What stands behind it on the help page; empty: it takes no value. FILE, FOLDER, DIR, PATH and
  // PATTERN complete to paths, fp32|bf16 to these words (Note [What shells complete]).
  std::string value;
  std::string help;  // a row that takes part but is nobody's business has none
  bool repeats = false;
};
inline constexpr bool kRepeats = true;

struct KeySection;  // options.h

struct Command {
  std::string_view name;
  std::string_view summary;  // one line, for the list of commands
  std::string_view about;    // begins the help page: usage, what the command does
  std::vector<OptionRow> options = {};
  std::string_view closing = {};  // behind the options: examples
  std::string_view words = {};    // what its words are, as OptionRow::value, or COMMAND
  std::vector<KeySection> (*keys)() = nullptr;  // those of its configuration, as key=value
  // Gets what stands behind the command's name. A result goes to stdout. Throws floe::Error.
  Exit (*run)(const Args& args);
};

// What `floe COMMAND --help` prints.
std::string help_page(const Command& command);

extern const Command kCalibrateCommand;
extern const Command kCompletionCommand;
extern const Command kConvertCommand;
extern const Command kDemoCommand;
extern const Command kDiffCommand;
extern const Command kDoctorCommand;
extern const Command kEvalCommand;
extern const Command kExportCommand;
extern const Command kForwardCommand;
extern const Command kGenerateCommand;
extern const Command kHelpCommand;
extern const Command kInitCommand;
extern const Command kInspectCommand;
extern const Command kLaunchCommand;
extern const Command kMigrateCommand;
extern const Command kPlanCommand;
extern const Command kReportCommand;
extern const Command kScoreCommand;
extern const Command kStatusCommand;
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
