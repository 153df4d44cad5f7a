#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/core/host.h"
#include "floe/observe/metrics/progress.h"
#include "floe/observe/metrics/record.h"
#include "floe/observe/metrics/run_status.h"

namespace floe::cli {
namespace {

using observe::format_duration;
using observe::RunStatus;

// A run renews its status every few seconds; with clocks of two hosts that are a little apart.
constexpr double kSilentSeconds = 60;

// Whether there is a process of this number on this machine; one that only waits to be counted
// (a zombie) is none.
bool is_there(std::int64_t pid) {
  std::string text;
  std::getline(std::ifstream(str("/proc/", pid, "/stat")), text);
  const std::size_t end = text.rfind(')');  // of its name, which may have any characters
  return end != std::string::npos && end + 2 < text.size() && text[end + 2] != 'Z' &&
         text[end + 2] != 'X';
}

// Why a run that says it is at work is not; empty: it is.
std::string sign_of_death(const RunStatus& status, double now_s) {
  const bool here = status.host == host_name();
  const double silent_s = now_s - status.updated_s;
  if (here && !is_there(status.pid))
    return str("its rank 0 (process ", status.pid, " on ", status.host,
               ") is gone without a word, ", format_duration(std::max(0.0, silent_s)),
               " after its last sign of life; start the same command again");
  if (silent_s > kSilentSeconds)
    return str("its rank 0 (process ", status.pid, " on ", status.host,
               ") has given no sign of life for ", format_duration(silent_s),
               ": it is gone or stopped, or its host hangs");
  return "";
}

std::string progress_of(const RunStatus& status, double now_s) {
  std::string text = str("step ", status.step, " of ", status.total_steps);
  if (!status.phase.empty()) text += str(" (phase '", status.phase, "')");
  if (status.stepped_s)
    text += str(", ", format_duration(std::max(0.0, now_s - *status.stepped_s)), " ago");
  if (status.seconds_per_step) {
    text += str("; ", *status.seconds_per_step, " s per step");
    if (!status.exit_code && status.total_steps > status.step)
      text += str(", about ",
                  format_duration(static_cast<double>(status.total_steps - status.step) *
                                  *status.seconds_per_step),
                  " left");
  }
  return text;
}

void print_status(const RunStatus& status, const std::string& dead, double now_s) {
  const auto row = [](std::string_view name, const std::string& text) {
    if (!text.empty()) std::cout << name << std::string(12 - name.size(), ' ') << text << "\n";
  };
  std::string state(dead.empty() ? observe::name_of(status.state) : "gone");
  if (status.exit_code) state += str(" (exit code ", *status.exit_code, ")");
  row("state", state);
  row("reason", dead.empty() ? status.reason : dead);
  row("progress", progress_of(status, now_s));
  std::vector<std::string> losses;
  for (const auto& [source, loss] : status.losses) losses.push_back(str(source, " ", loss));
  row("loss", join(losses, ", "));
  row("slowest", status.slowest);
  if (status.saved_s)
    row("checkpoint", str(status.checkpoint, ", ",
                          format_duration(std::max(0.0, now_s - *status.saved_s)), " ago"));
  row("started",
      str(format_duration(std::max(0.0, now_s - status.started_s)), " ago by floe ", status.version,
          status.restarts > 0 ? str(", after ", counted(status.restarts, "restart")) : ""));
  for (std::size_t i = 0; i < status.ranks.size(); ++i) row(i == 0 ? "ranks" : "", status.ranks[i]);
  for (std::size_t i = 0; i < status.doing.size(); ++i) row(i == 0 ? "doing" : "", status.doing[i]);
}

Exit run_status(const Args& args) {
  const Options options(kStatusCommand, args);
  require<ConfigError>(options.words().size() == 1,
                       "status takes the folder of one run: floe status RUN [--json]");
  const std::string folder = options.words().front();
  require<ConfigError>(std::filesystem::is_directory(folder), "there is no folder '", folder, "'");
  const auto status = observe::read_run_status(folder);
  require<ConfigError>(status.has_value(), "'", folder,
                       "' has no status.json: no run has begun there, or one of an older floe "
                       "('floe inspect' knows those)");
  const double now_s = observe::unix_time_s();
  const std::string dead = status->exit_code ? "" : sign_of_death(*status, now_s);
  if (options.has("--json")) {
    auto json = observe::to_json(*status);
    json["alive"] = !status->exit_code && dead.empty();
    if (!dead.empty()) json["reason"] = dead;
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    print_status(*status, dead, now_s);
  }
  return Exit::done;
}

}  // namespace

const Command kStatusCommand{
    .name = "status",
    .summary = "how far a run is, what it waits for, or how it ended",
    .about = R"(usage: floe status RUN [--json]

Looks at the run in the folder RUN from outside, from any machine that sees the folder: its state
(starting, training, done, stopped, failed, or gone without a word), the step and how long ago it was
made, losses, the slowest rank, the newest checkpoint, where the ranks are; where there has been no
step for half a minute, what every rank is doing; of a run that has ended the exit code and the reason.
It reads RUN/status.json, which rank 0 renews every 5 s.
)",
    .options =
        {
            {"--json", "",
             "the same as JSON, with times as unix times and whether the run is alive"},
        },
    .closing = R"(  floe status runs/demo
  watch -n 5 floe status runs/demo
)",
    .words = "FOLDER",
    .run = run_status,
};

}  // namespace floe::cli
