#include "floe/observe/metrics/run_status.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "floe/core/error.h"
#include "floe/observe/metrics/record.h"

namespace floe::observe {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 5> kStateNames = {"starting", "training", "done", "stopped",
                                                         "failed"};

std::string file_of(const std::string& folder) { return folder + "/status.json"; }

template <class T>
void set(ordered_json& json, const char* name, const std::optional<T>& value) {
  if (value) json[name] = *value;
}
void set(ordered_json& json, const char* name, const std::string& value) {
  if (!value.empty()) json[name] = value;
}
void set(ordered_json& json, const char* name, const std::vector<std::string>& value) {
  if (!value.empty()) json[name] = value;
}

template <class T>
void get(const ordered_json& json, const char* name, T& value) {
  if (const auto found = json.find(name); found != json.end()) value = found->get<T>();
}
template <class T>
void get(const ordered_json& json, const char* name, std::optional<T>& value) {
  if (const auto found = json.find(name); found != json.end()) value = found->get<T>();
}

RunStatus from_json(const ordered_json& json) {
  RunStatus status;
  const std::string state = json.at("state");
  const auto* found = std::find(kStateNames.begin(), kStateNames.end(), state);
  require<DataError>(found != kStateNames.end(), "there is no state '", state, "'");
  status.state = static_cast<RunStatus::State>(found - kStateNames.begin());
  get(json, "floe", status.version);
  get(json, "host", status.host);
  get(json, "pid", status.pid);
  get(json, "started", status.started_s);
  get(json, "updated", status.updated_s);
  get(json, "restarts", status.restarts);
  get(json, "ranks", status.ranks);
  get(json, "step", status.step);
  get(json, "total_steps", status.total_steps);
  get(json, "stepped", status.stepped_s);
  get(json, "seconds_per_step", status.seconds_per_step);
  get(json, "phase", status.phase);
  if (const auto losses = json.find("losses"); losses != json.end())
    for (const auto& [source, loss] : losses->items())
      if (loss.is_number()) status.losses.emplace_back(source, loss.get<double>());
  get(json, "slowest", status.slowest);
  get(json, "checkpoint", status.checkpoint);
  get(json, "saved", status.saved_s);
  get(json, "doing", status.doing);
  get(json, "exit_code", status.exit_code);
  get(json, "reason", status.reason);
  return status;
}

}  // namespace

std::int64_t restarts_so_far() {
  const auto count = [](const char* name) -> std::int64_t {
    const char* text = std::getenv(name);
    return text ? std::max(0LL, std::strtoll(text, nullptr, 10)) : 0;  // what is no number is none
  };
  // A launcher counts within a start by the scheduler.
  return std::max(count("FLOE_RESTARTS"), count("TORCHELASTIC_RESTART_COUNT")) +
         count("SLURM_RESTART_COUNT");
}

std::string_view name_of(RunStatus::State state) {
  return kStateNames.at(static_cast<std::size_t>(state));
}

ordered_json to_json(const RunStatus& status) {
  ordered_json json{{"state", name_of(status.state)},
                    {"floe", status.version},
                    {"host", status.host},
                    {"pid", status.pid},
                    {"started", status.started_s},
                    {"updated", status.updated_s},
                    {"restarts", status.restarts},
                    {"ranks", status.ranks},
                    {"step", status.step},
                    {"total_steps", status.total_steps}};
  set(json, "stepped", status.stepped_s);
  set(json, "seconds_per_step", status.seconds_per_step);
  set(json, "phase", status.phase);
  for (const auto& [source, loss] : status.losses) json["losses"][source] = loss;
  set(json, "slowest", status.slowest);
  set(json, "checkpoint", status.checkpoint);
  set(json, "saved", status.saved_s);
  set(json, "doing", status.doing);
  set(json, "exit_code", status.exit_code);
  set(json, "reason", status.reason);
  return json;
}

std::optional<RunStatus> read_run_status(const std::string& folder) {
  const std::string path = file_of(folder);
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return from_json(ordered_json::parse(text.str()));
  } catch (const nlohmann::json::exception& e) {
    throw DataError(str(path, " is no status of a run: ", e.what()));
  } catch (const DataError& e) {
    throw DataError(str(path, " is no status of a run: ", e.what()));
  }
}

void write_run_status(const std::string& folder, RunStatus status) {
  status.updated_s = unix_time_s();
  const std::string path = file_of(folder), temporary = path + ".new";
  const std::string text =
      to_json(status).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  // Not synced: after a crash of the machine an older one does as well.
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  const bool written = file.good();
  file.close();
  if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  std::remove(temporary.c_str());
  throw Error(str(path, " cannot be written: ", std::strerror(error)));
}

}  // namespace floe::observe
