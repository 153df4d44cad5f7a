#include <algorithm>
#include <iostream>

#include "floe/cli/command.h"
#include "floe/core/names.h"

namespace floe::cli {
namespace {

bool asks_for_help(const Args& args) {
  for (const auto& arg : args) {
    if (arg == "--" || arg == "--exec") return false;
    if (arg == "--help" || arg == "-h") return true;
  }
  return false;
}

}  // namespace

const std::vector<const Command*>& commands() {
  static const std::vector<const Command*> table{
      &kTrainCommand,  &kLaunchCommand, &kPlanCommand,    &kReportCommand,   &kInspectCommand,
      &kExportCommand, &kDiffCommand,   &kForwardCommand, &kGenerateCommand, &kConvertCommand,
      &kDoctorCommand, &kHelpCommand,   &kVersionCommand,
  };
  return table;
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command* command : commands()) {
    if (command->name == name) return *command;
    names.emplace_back(command->name);
  }
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) hint = "; 'floe --help' lists the commands";
  throw ConfigError(str("there is no command '", name, "'", hint));
}

Exit run_command_line(const Args& args) {
  if (args.empty()) {
    kHelpCommand.run({});
    throw ConfigError("say what to do: floe COMMAND");
  }
  const std::string& first = args.front();
  if (first == "--help" || first == "-h") return kHelpCommand.run({});
  if (first == "--version") return kVersionCommand.run({});
  const Command& command = find_command(first);
  const Args rest(args.begin() + 1, args.end());
  if (asks_for_help(rest)) return kHelpCommand.run({first});
  return command.run(rest);
}

}  // namespace floe::cli
