#include "floe/launch/launch.h"

#include <unistd.h>

#include <charconv>
#include <climits>
#include <cmath>
#include <iostream>

#include "floe/cli/command.h"
#include "floe/cli/options.h"

namespace floe::cli {
namespace {

template <class Number>
Number number(const std::string& option, const std::string& text, Number least, Number most) {
  Number value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  require<ConfigError>(
      status == std::errc() && end == text.data() + text.size() && value >= least && value <= most,
      "launch: ", option, " takes a number from ", least, " to ", most, ", got '", text, "'");
  return value;
}

std::pair<std::string, std::string> variable(const std::string& text) {
  const auto equals = text.find('=');
  require<ConfigError>(equals != std::string::npos && equals > 0,
                       "launch: --env takes NAME=VALUE, got '", text, "'");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::string this_program() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  require(length > 0, "cannot find this program: /proc/self/exe is not readable");
  return {path, static_cast<std::size_t>(length)};
}

launch::LaunchOptions parse(const Args& args) {
  const Options given(kLaunchCommand, args, Options::Order::leading, "--exec");
  launch::LaunchOptions options;
  options.num_ranks = 0;
  if (const auto ranks = given.value("-n")) options.num_ranks = number("-n", *ranks, 1, 4096);
  if (const auto grace = given.value("--grace")) {
    const double seconds = number("--grace", *grace, 0.0, 86400.0);
    options.grace = std::chrono::milliseconds(std::llround(seconds * 1000));
  }
  options.prefix = !given.has("--no-prefix");
  for (const std::string& text : given.values("--env"))
    options.environment.push_back(variable(text));
  require<ConfigError>(options.num_ranks > 0, "launch: say how many ranks to start: -n N");
  options.command = given.words();
  require<ConfigError>(!options.command.empty(), "launch: say what the ranks shall run, such as: ",
                       "floe launch -n 2 --exec ./my_program");
  if (!given.has("--exec")) {
    find_command(options.command.front());  // one error instead of one per rank
    options.command.insert(options.command.begin(), this_program());
  }
  return options;
}

Exit run(const Args& args) {
  const launch::LaunchResult result = launch::launch(parse(args));
  if (!result.last_stderr.empty() && !result.stop_signal) {
    std::cerr << "last lines of rank " << *result.first_failure << ":\n";
    for (const auto& line : result.last_stderr) std::cerr << "  " << line << "\n";
  }
  if (result.first_failure) std::cerr << "floe: " << launch::describe_failure(result) << std::endl;
  return static_cast<Exit>(result.exit_code());
}

}  // namespace

const Command kLaunchCommand{
    .name = "launch",
    .summary = "start ranks of a command or another program on this machine",
    .about = R"(usage: floe launch -n N [options] [--] COMMAND ...
       floe launch -n N [options] --exec PROGRAM ...

Starts N ranks on this machine and waits for them. The first form runs `floe COMMAND ...` N times,
the second another program. Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT in its environment, and OMP_NUM_THREADS as its part of the cores unless
that is set. Output comes line by line with the rank in front.

When a rank fails, the others have time to end by themselves, then they are stopped. The result is
that of the rank that failed first: its exit code, or 128 + the signal that ended it. Ctrl-C is
passed on; a second one stops ranks that do not react. SIGTERM and SIGHUP ask the ranks to stop and
leave them the grace period; repeats change nothing.
)",
    .options =
        {
            {"-n", "N", "number of ranks"},
            {"--grace", "S", "seconds from the first failure to the end of the others (30)"},
            {"--no-prefix", "", "no rank in front of lines"},
            {"--env", "K=V", "set a variable for every rank; may be repeated", kRepeats},
            {"--exec", "", "the rest is a program and its arguments"},
        },
    .closing = R"(  floe launch -n 2 --env FLOE_LOG=debug --exec ./my_program --fast
)",
    .words = "COMMAND",
    .run = run,
};

}  // namespace floe::cli
