#include "floe/launch/launch.h"

#include <unistd.h>

#include <charconv>
#include <climits>
#include <cmath>
#include <iostream>

#include "floe/cli/command.h"

namespace floe::cli {
namespace {

constexpr std::string_view kHelp =
    R"(usage: floe launch -n N [options] [--] COMMAND ...
       floe launch -n N [options] --exec PROGRAM ...

Starts N ranks on this machine and waits for them. The first form runs `floe COMMAND ...` N times,
the second another program. Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT in its environment, and OMP_NUM_THREADS as its part of the cores unless
that is set. Output comes line by line with the rank in front.

When a rank fails, the others have time to end by themselves, then they are stopped. The result is
that of the rank that failed first: its exit code, or 128 + the signal that ended it. Ctrl-C is
passed on; a second one stops ranks that do not react. SIGTERM and SIGHUP ask the ranks to stop and
leave them the grace period; repeats change nothing.

  -n N          number of ranks
  --grace S     seconds from the first failure to the end of the others (30)
  --no-prefix   no rank in front of lines
  --env K=V     set a variable for every rank; may be repeated
  --exec        the rest is a program and its arguments

  floe launch -n 2 --env FLOE_LOG=debug --exec ./my_program --fast
)";

// Takes options from the front of a command line.
class OptionReader {
 public:
  explicit OptionReader(const Args& args) : args_(args) {}

  bool at_option() const { return next_ < args_.size() && args_[next_].starts_with("-"); }
  // The next word's option name; a value after '=' is kept for `value`.
  std::string name() {
    std::string word = args_[next_++];
    inline_value_.reset();
    if (const auto equals = word.find('='); word.starts_with("--") && equals != std::string::npos) {
      inline_value_ = word.substr(equals + 1);
      word.resize(equals);
    }
    return word;
  }
  std::string value(const std::string& option) {
    if (inline_value_) return *inline_value_;
    require<ConfigError>(next_ < args_.size(), "launch: ", option, " needs a value behind it");
    return args_[next_++];
  }
  Args rest() const { return {args_.begin() + static_cast<std::ptrdiff_t>(next_), args_.end()}; }

 private:
  const Args& args_;
  std::size_t next_ = 0;
  std::optional<std::string> inline_value_;
};

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
  launch::LaunchOptions options;
  options.num_ranks = 0;
  OptionReader reader(args);
  bool other_program = false;
  bool in_options = true;
  while (in_options && reader.at_option()) {
    const std::string name = reader.name();
    if (name == "-n") {
      options.num_ranks = number(name, reader.value(name), 1, 4096);
    } else if (name == "--grace") {
      const double seconds = number(name, reader.value(name), 0.0, 86400.0);
      options.grace = std::chrono::milliseconds(std::llround(seconds * 1000));
    } else if (name == "--no-prefix") {
      options.prefix = false;
    } else if (name == "--env") {
      options.environment.push_back(variable(reader.value(name)));
    } else if (name == "--exec" || name == "--") {
      other_program = name == "--exec";
      in_options = false;
    } else {
      throw ConfigError(str("launch: there is no option '", name,
                            "'; 'floe launch --help' lists them, and what the ranks run stands "
                            "behind '--'"));
    }
  }
  require<ConfigError>(options.num_ranks > 0, "launch: say how many ranks to start: -n N");
  options.command = reader.rest();
  require<ConfigError>(!options.command.empty(), "launch: say what the ranks shall run, such as: ",
                       "floe launch -n 2 --exec ./my_program");
  if (!other_program) {
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
    .help = kHelp,
    .run = run,
};

}  // namespace floe::cli
