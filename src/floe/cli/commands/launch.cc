#include "floe/launch/launch.h"

#include <unistd.h>

#include <charconv>
#include <climits>
#include <cmath>
#include <iostream>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/launch/elastic.h"

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

std::chrono::milliseconds seconds_of(const Options& given, const std::string& option,
                                     std::chrono::milliseconds fallback) {
  const auto text = given.value(option);
  if (!text) return fallback;
  return std::chrono::milliseconds(std::llround(number(option, *text, 0.0, 86400.0) * 1000));
}

// HOST:PORT, with an IPv6 address in brackets.
control::Address address(const std::string& text) {
  const auto colon = text.rfind(':');
  require<ConfigError>(colon != std::string::npos && colon > 0,
                       "launch: --rdzv takes HOST:PORT, got '", text, "'");
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  require<ConfigError>(!host.empty(), "launch: --rdzv takes HOST:PORT, got '", text, "'");
  return {host, number("the port of --rdzv", text.substr(colon + 1), 1, 65535)};
}

launch::LaunchOptions ranks_of(const Options& given) {
  launch::LaunchOptions options;
  options.num_ranks = 0;
  if (const auto ranks = given.value("-n")) options.num_ranks = number("-n", *ranks, 1, 4096);
  options.grace = seconds_of(given, "--grace", options.grace);
  options.prefix = !given.has("--no-prefix");
  options.last = true;
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

// Several hosts, or ranks that are started again; nothing: neither is asked for.
std::optional<launch::ElasticOptions> elastic_of(const Options& given) {
  const auto hosts = given.value("--nnodes"), restarts = given.value("--max-restarts"),
             rendezvous = given.value("--rdzv");
  if (!hosts && !restarts && !rendezvous) {
    require<ConfigError>(!given.has("--host-wait"),
                         "launch: --host-wait needs --nnodes and --rdzv");
    return std::nullopt;
  }
  launch::ElasticOptions options;
  options.ranks = ranks_of(given);
  if (hosts) {
    const auto colon = hosts->find(':');
    options.min_hosts = number("--nnodes", hosts->substr(0, colon), 1, 4096);
    options.max_hosts = colon == std::string::npos
                            ? options.min_hosts
                            : number("--nnodes", hosts->substr(colon + 1), options.min_hosts, 4096);
  }
  if (restarts) options.max_restarts = number("--max-restarts", *restarts, 0, 1'000'000);
  if (rendezvous) options.rendezvous = address(*rendezvous);
  require<ConfigError>(rendezvous || options.max_hosts == 1, "launch: --nnodes ", *hosts,
                       " needs --rdzv HOST:PORT, where the launchers of all hosts meet");
  require<ConfigError>(rendezvous || !given.has("--host-wait"),
                       "launch: --host-wait needs --nnodes and --rdzv");
  options.host_wait = seconds_of(given, "--host-wait", options.host_wait);
  return options;
}

Exit run_elastic(const launch::ElasticOptions& options) {
  const launch::ElasticResult result = launch::launch_elastic(options);
  if (!result.why.empty()) std::cerr << "floe: " << result.why << std::endl;
  return static_cast<Exit>(result.exit_code);
}

Exit run_launch(const Args& args) {
  const Options given(kLaunchCommand, args, Options::Order::leading, "--exec");
  if (const auto elastic = elastic_of(given)) return run_elastic(*elastic);
  const launch::LaunchResult result = launch::launch(ranks_of(given));
  const bool stopped = result.exit_code() == static_cast<int>(Exit::stopped);
  if (!result.last_stderr.empty() && !result.stop_signal && !stopped) {
    std::cerr << "last lines of rank " << *result.first_failure << ":\n";
    for (const auto& line : result.last_stderr) std::cerr << "  " << line << "\n";
  }
  if (result.first_failure) std::cerr << "floe: " << launch::describe_failure(result) << std::endl;
  require(result.exit_code() != 0 || !result.has_lost_output,
          "what the ranks printed could not be written to standard output; is there room?");
  return static_cast<Exit>(result.exit_code());
}

}  // namespace

const Command kLaunchCommand{
    .name = "launch",
    .summary = "start ranks of a command or another program, on one host or several",
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

On several hosts the same command is given on each, with --nnodes and --rdzv: the launchers meet at
HOST:PORT, a host of the job that all can reach, and number the ranks. With --max-restarts all ranks
are started again when one has failed or a host is lost (exit code 2, a wrong configuration, and 75,
a stop, are final): floe train then goes on from its newest checkpoint. With --nnodes 2:8 the job
begins, and goes on, with 2 to 8 hosts; one that comes (back) later is part of the next start. The job
ends with the launcher at HOST.
)",
    .options =
        {
            {"-n", "N", "number of ranks on this host"},
            {"--nnodes", "MIN:MAX", "number of hosts, as N or from MIN to MAX (1)"},
            {"--rdzv", "HOST:PORT", "where the launchers of all hosts meet"},
            {"--max-restarts", "R", "how often the ranks are started again after a failure (0)"},
            {"--host-wait", "S", "seconds to wait for enough hosts (600)"},
            {"--grace", "S", "seconds from the first failure to the end of the others (30)"},
            {"--no-prefix", "", "no rank in front of lines"},
            {"--env", "K=V", "set a variable for every rank; may be repeated", kRepeats},
            {"--exec", "", "the rest is a program and its arguments"},
        },
    .closing = R"(  floe launch -n 2 --env FLOE_LOG=debug --exec ./my_program --fast
  floe launch -n 8 --nnodes 2:4 --rdzv node0:29400 --max-restarts 5 -- train my.yaml
)",
    .words = "COMMAND",
    .run = run_launch,
};

}  // namespace floe::cli
