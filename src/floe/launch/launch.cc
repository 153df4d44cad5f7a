#include "floe/launch/launch.h"

#include <cstring>

#include "floe/core/error.h"
#include "floe/launch/launcher.h"

namespace floe::launch {

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? str("SIG", name) : str("signal ", signal);
}

LaunchResult launch(const LaunchOptions& options) {
  require<ConfigError>(!options.command.empty(), "there is no program to launch");
  require<ConfigError>(options.num_ranks >= 1, "the number of ranks must be at least 1, got ",
                       options.num_ranks);
  SignalReader signals(options.last);
  return Launcher(options, signals, nullptr).run();
}

std::string describe_failure(const LaunchResult& result) {
  if (!result.first_failure) return "";
  const int rank = *result.first_failure;
  const RankEnd& end = result.ranks[static_cast<std::size_t>(rank)];
  if (end.exit_code == static_cast<int>(Exit::stopped))
    return str(
        result.stop_signal ? str("stopped by ", signal_name(*result.stop_signal)) : "stopped",
        "; all is saved, and the same command goes on (exit code ", end.exit_code, ")");
  return str(result.stop_signal ? str("stopped by ", signal_name(*result.stop_signal), "; ") : "",
             "rank ", result.first_rank + rank, " of ",
             result.world_size ? result.world_size : static_cast<int>(result.ranks.size()),
             result.stop_signal ? " ended first: " : " failed first: ",
             end.signal ? str("it was ended by ", signal_name(end.signal))
                        : str("it returned exit code ", end.exit_code));
}

}  // namespace floe::launch
