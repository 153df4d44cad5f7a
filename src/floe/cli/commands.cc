#include <algorithm>
#include <csignal>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/core/names.h"
#include "floe/version.h"

namespace floe::cli {
namespace {

std::atomic<bool> stop_requested{false};

bool asks_for_help(const Args& args) {
  for (const auto& arg : args) {
    if (arg == "--" || arg == "--exec") return false;
    if (arg == "--help" || arg == "-h") return true;
  }
  return false;
}

Exit show_help(const Args& args) {
  require<ConfigError>(args.size() <= 1, "help takes one command's name, got '", join(args, " "),
                       "'");
  if (!args.empty()) {
    std::cout << help_page(find_command(args[0]));
    return Exit::done;
  }
  std::cout << "floe trains partly frozen models, every byte of their state sharded over ranks.\n\n"
               "usage: floe COMMAND ...\n\n";
  for (const Command* command : commands())
    std::cout << "  " << std::left << std::setw(12) << command->name << command->summary << "\n";
  std::cout << "\n'floe COMMAND --help' tells more about one of them.\n";
  return Exit::done;
}

Exit show_version(const Args& args) {
  require<ConfigError>(args.empty(), "version takes no arguments, got '", join(args, " "), "'");
  std::cout << "floe " << kVersion << "\n";
  return Exit::done;
}

constexpr std::size_t kWidth = 104;  // of a help page

// Text in lines behind a margin; the first line stands where the output is now.
std::string wrapped(const std::string& text, std::size_t margin) {
  std::string out;
  std::size_t column = margin;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (column > margin && column + 1 + word.size() > kWidth) {
      out += str("\n", std::string(margin, ' '));
      column = margin;
    } else if (column > margin) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

std::string name_of(const OptionRow& row) {
  return row.value.empty() ? row.name : row.name + " " + row.value;
}

std::string option_rows(const std::vector<OptionRow>& rows) {
  std::size_t widest = 0;
  for (const OptionRow& row : rows) widest = std::max(widest, name_of(row).size());
  std::string out;
  for (const OptionRow& row : rows) {
    if (row.name.empty()) out += "\n";
    if (row.help.empty()) continue;
    const std::string name = name_of(row);
    out += str("  ", name, std::string(widest - name.size() + 3, ' '),
               wrapped(row.help, widest + 5), "\n");
  }
  return out;
}

}  // namespace

std::string help_page(const Command& command) {
  std::string page(command.about);
  if (!command.options.empty()) page += str("\n", option_rows(command.options));
  if (!command.closing.empty()) page += str("\n", command.closing);
  if (command.keys)
    for (const KeySection& section : command.keys())
      if (!section.heading.empty())
        page += str("\n", section.heading, "\n", config::help_text(section.fields));
  return page;
}

const Command kHelpCommand{
    .name = "help",
    .summary = "this list, or what one command does",
    .about = "usage: floe help [COMMAND]\n",
    .words = "COMMAND",
    .run = show_help,
};

const Command kVersionCommand{
    .name = "version",
    .summary = "the version of this program",
    .about = "usage: floe version\n",
    .run = show_version,
};

const std::vector<const Command*>& commands() {
  static const std::vector<const Command*> table{
      &kInitCommand,      &kTrainCommand,  &kLaunchCommand,     &kPlanCommand,
      &kCalibrateCommand, &kStatusCommand, &kReportCommand,     &kInspectCommand,
      &kExportCommand,    &kDiffCommand,   &kForwardCommand,    &kGenerateCommand,
      &kScoreCommand,     &kEvalCommand,   &kConvertCommand,    &kMigrateCommand,
      &kDoctorCommand,    &kDemoCommand,   &kCompletionCommand, &kHelpCommand,
      &kVersionCommand,
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

const std::atomic<bool>& stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
  return stop_requested;
}

}  // namespace floe::cli
