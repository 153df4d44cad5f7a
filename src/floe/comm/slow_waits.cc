#include "floe/comm/slow_waits.h"

#include <algorithm>

#include "floe/comm/activity.h"
#include "floe/core/log.h"
#include "floe/core/stacks.h"

namespace floe::comm {
namespace {

constexpr std::chrono::milliseconds kSlowWait{60'000};

// Set while a thread asks what all ranks are doing: what it then says of its own does not mean that
// others wait for it.
thread_local bool asks_itself = false;

}  // namespace

SlowWaits::SlowWaits(control::ControlPlane& control, int rank, std::chrono::milliseconds timeout)
    : control_(control), rank_(rank), slow_(std::min(kSlowWait, timeout / 3)) {}

void SlowWaits::answer() {
  control_.set_state([asked = asked_] {
    if (!asks_itself) *asked = true;
    return Activity::of_this_rank().text();
  });
}

void SlowWaits::look() {
  tell_of_own_wait();
  tell_where_it_is();
}

// By what all are doing.
void SlowWaits::tell_of_own_wait() {
  if (rank_ >= kRanksThatTell) return;
  const auto wait = Activity::of_this_rank().waiting();
  if (!wait) return;
  if (wait->number != told_wait_) {
    told_wait_ = wait->number;
    tell_after_ = slow_;
  }
  if (wait->since < tell_after_) return;
  tell_after_ = 2 * wait->since;
  log::warn("this rank waits in ", wait->what, " since ", wait->since.count(),
            " s; what the ranks are doing: ", sentence());
}

// Somebody asks what this rank is doing, and it has been doing the same for long: others wait for
// it. Where its threads are is in its log, once.
void SlowWaits::tell_where_it_is() {
  if (!asked_->exchange(false)) return;
  const std::lock_guard lock(telling_);
  if (ended_) return;
  const auto part = Activity::of_this_rank().working();
  if (!part || part->number == told_part_ || part->since < slow_) return;
  told_part_ = part->number;
  log::warn("others wait for this rank, which ", part->what, " since ", part->since.count(),
            " s; where its threads are:");
  for (const std::string& line : stacks_of_all_threads()) log::info(line);
}

void SlowWaits::end_with(const std::string& line) {
  const std::lock_guard lock(telling_);  // what is being written comes before it
  ended_ = true;
  log::error(line);
}

std::vector<std::string> SlowWaits::states() {
  const struct Asking {
    Asking() { asks_itself = true; }
    ~Asking() { asks_itself = false; }
  } asking;
  return control_.states();
}

std::string SlowWaits::sentence() {
  return sentence_of_states(states(), [this](int rank) { return control_.name_of(rank); });
}

}  // namespace floe::comm
