#include "floe/train/reporting/status_file.h"

#include <unistd.h>

#include <utility>

#include "floe/core/error.h"
#include "floe/core/host.h"
#include "floe/core/log.h"
#include "floe/core/str.h"
#include "floe/observe/metrics/record.h"
#include "floe/version.h"

namespace floe::train {
namespace {

using observe::RunStatus;
using observe::unix_time_s;

constexpr std::chrono::seconds kInterval{5};
constexpr double kLongWithoutStepSeconds = 30;

// Of comm::Activity::text().
std::string in_words(const std::string& state) {
  if (state.empty()) return "does not answer";
  const auto tab = state.find('\t');
  return tab == std::string::npos
             ? state
             : str(state.substr(0, tab), " since ", state.substr(tab + 1), " s");
}

}  // namespace

StatusFile::StatusFile(std::string folder, comm::World& world)
    : folder_(std::move(folder)), world_(world) {
  status_.version = kVersion;
  status_.host = host_name();
  status_.pid = ::getpid();
  status_.started_s = unix_time_s();
  status_.restarts = observe::restarts_so_far();
  status_.ranks = world.placement();
  write(/*ask=*/false);
  watch_ = std::make_unique<comm::Watch>(kInterval, [this] {
    write(/*ask=*/true);
    return false;
  });
}

StatusFile::~StatusFile() {
  watch_.reset();
  write(/*ask=*/false);
}

void StatusFile::begin(std::int64_t first_step, std::int64_t total_steps) {
  {
    std::lock_guard lock(mutex_);
    status_.state = RunStatus::State::training;
    status_.step = first_step;
    status_.total_steps = total_steps;
  }
  write(/*ask=*/false);
}

void StatusFile::set_total_steps(std::int64_t total_steps) {
  std::lock_guard lock(mutex_);
  status_.total_steps = total_steps;
}

void StatusFile::step(const StepRecord& record) {
  std::lock_guard lock(mutex_);
  status_.step = record.step;
  status_.stepped_s = unix_time_s();
  status_.seconds_per_step = record.times.step();
  status_.phase = record.phase;
  status_.losses.clear();
  for (const auto& source : record.sources) status_.losses.emplace_back(source.name, source.loss);
  if (record.rank_times.size() > 1) {
    const TimeRange own = range_of(record.rank_times, &RankTimes::own_s);
    const double data_s = record.rank_times[static_cast<std::size_t>(own.most_rank)].data_s;
    status_.slowest = str(world_.name_of(own.most_rank), ": ", own.most_s, " s of its own, ",
                          data_s, " s of them for data");
  }
}

void StatusFile::saved(const std::string& checkpoint, double time_s) {
  std::lock_guard lock(mutex_);
  status_.checkpoint = checkpoint;
  status_.saved_s = time_s;
}

void StatusFile::write(bool ask) {
  RunStatus now;
  {
    std::lock_guard lock(mutex_);
    now = status_;
  }
  const double since = unix_time_s() - now.stepped_s.value_or(now.started_s);
  if (ask && since > kLongWithoutStepSeconds) {
    const std::vector<std::string> states = world_.states();
    for (std::size_t rank = 0; rank < states.size(); ++rank)
      now.doing.push_back(
          str(world_.name_of(static_cast<int>(rank)), ": ", in_words(states[rank])));
  }
  try {
    observe::write_run_status(folder_, now);
  } catch (const Error& e) {
    if (!std::exchange(warned_, true)) log::warn(e.what(), "; the run goes on without it");
  }
}

void end_status(const std::string& folder, int exit_code, bool stopped, const std::string& reason) {
  try {
    auto status = observe::read_run_status(folder);
    if (!status || status->pid != ::getpid() || status->host != host_name()) return;
    if (exit_code == 0)
      status->state = RunStatus::State::done;
    else
      status->state = stopped ? RunStatus::State::stopped : RunStatus::State::failed;
    status->exit_code = exit_code;
    status->reason = reason;
    status->doing.clear();
    observe::write_run_status(folder, *status);
  } catch (const Error& e) {
    log::warn(e.what());
  }
}

}  // namespace floe::train
