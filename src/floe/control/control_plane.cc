#include "floe/control/control_plane.h"

#include <algorithm>

#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::control {
namespace {

using namespace std::chrono_literals;

// How long rank 0 may take for an answer that waits for nobody.
constexpr milliseconds kAnswer{30'000};
// How long ranks may take to say what they are doing.
constexpr milliseconds kStates{3'000};
constexpr char kGivenUp[] = "this rank has given the others up";

// Whether an answer may fail to come while rank 0 is well.
bool waits(Request::Op op) {
  return op == Request::Op::get || op == Request::Op::wait || op == Request::Op::states;
}

}  // namespace

bool ControlPlane::on_several_hosts() const {
  return std::any_of(members_.begin(), members_.end(), [this](const Member& member) {
    return member.host_id != members_.front().host_id;
  });
}

std::string ControlPlane::name_of(int rank) const {
  const bool shown = on_several_hosts() && rank >= 0 && std::cmp_less(rank, members_.size());
  return shown ? str("rank ", rank, " on ", members_[static_cast<std::size_t>(rank)].host)
               : str("rank ", rank);
}

std::string ControlPlane::describe(const Failure& failure) const {
  if (!members_.empty()) return str(name_of(failure.rank), ": ", failure.cause);
  return str("rank ", failure.rank, failure.host.empty() ? "" : " on " + failure.host, ": ",
             failure.cause);
}

void ControlPlane::could_not_meet(const Failure& failure) const {
  const std::string why = str("the ranks could not meet because of ", describe(failure));
  if (failure.is_usage) throw ConfigError(why);
  throw CommError(why);
}

std::optional<Reply> ControlPlane::call(const Request& request, milliseconds wait,
                                        bool unless_failed) {
  const bool waiting = waits(request.op);
  const auto deadline = Clock::now() + (waiting ? wait : kAnswer);
  std::unique_lock lock(mutex_);
  const auto must_end = [&] { return unless_failed && (failure_ || given_up_); };
  require<CommError>(gone_.empty(), gone_);
  require<CommError>(!unless_failed || !given_up_, kGivenUp);
  const std::int64_t id = begin_call(request, deadline);
  std::optional<Reply> reply;
  const auto over = [&] {
    reply = take_reply(id);
    return reply || !gone_.empty() || must_end();
  };
  changed_.wait_until(lock, deadline, over);
  if (reply) return reply;
  drop_call(id);
  if (unless_failed && failure_) throw CommError(str("given up because of ", describe(*failure_)));
  require<CommError>(gone_.empty(), gone_);
  require<CommError>(!must_end(), kGivenUp);
  require<CommError>(waiting, name_of(0), " has not answered for ", kAnswer / 1s,
                     " s: its process is stopped or its host is gone");
  return std::nullopt;
}

ControlPlane::Question::Question(ControlPlane& plane, const Request& request) : plane_(plane) {
  const std::lock_guard lock(plane_.mutex_);
  require<CommError>(plane_.gone_.empty(), plane_.gone_);
  id_ = plane_.begin_call(request, Clock::time_point::max());
}

ControlPlane::Question::~Question() {
  const std::lock_guard lock(plane_.mutex_);
  if (open_) plane_.drop_call(id_);
}

std::optional<Reply> ControlPlane::Question::wait(milliseconds time) {
  std::unique_lock lock(plane_.mutex_);
  std::optional<Reply> reply;
  plane_.changed_.wait_for(lock, time, [&] {
    reply = plane_.take_reply(id_);
    return reply || !plane_.gone_.empty();
  });
  if (reply) open_ = false;
  require<CommError>(reply || plane_.gone_.empty(), plane_.gone_);
  return reply;
}

void ControlPlane::note_failure(const Failure& failure) {
  if (failure_) return;
  failure_ = failure;
  changed_.notify_all();
}

void ControlPlane::announce_failure(const std::string& cause, bool is_usage) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (!failure_ && gone_.empty())
      tell_failure({.rank = self_.rank, .cause = cause, .is_usage = is_usage});
  } catch (const std::exception& e) {
    log::debug("the failure could not be told: ", e.what());
  }
}

void ControlPlane::give_up() noexcept {
  const std::lock_guard lock(mutex_);
  given_up_ = true;
  changed_.notify_all();
}

std::optional<Failure> ControlPlane::first_failure(milliseconds wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [this] { return failure_.has_value(); });
  return failure_;
}

bool ControlPlane::has_failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

std::optional<std::string> ControlPlane::lost() const {
  const std::lock_guard lock(mutex_);
  return gone_.empty() ? std::nullopt : std::optional(gone_);
}

std::int64_t ControlPlane::num_requests() const {
  const std::lock_guard lock(mutex_);
  return num_requests_;
}

void ControlPlane::set_state(std::function<std::string()> state) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(state);
}

std::string ControlPlane::state() const { return state_ ? state_() : "nothing that it tells"; }

bool ControlPlane::rank_0_answers() {
  try {
    return call({.op = Request::Op::states}, 2s).has_value();
  } catch (const CommError&) {
    return false;
  }
}

std::string ControlPlane::state_of(int rank) {
  try {
    const Request request{Request::Op::states, {std::to_string(rank)}, {}, kStates.count()};
    if (const auto reply = call(request, kStates + 2s))
      return reply->values.empty() ? "" : reply->values.front();
  } catch (const CommError& e) {
    log::debug(e.what());
  }
  return rank == 0 ? "" : "cannot be asked, because rank 0 does not answer";
}

std::vector<std::string> ControlPlane::states() {
  std::vector<std::string> texts(members_.size());
  try {
    Request request{.op = Request::Op::states};
    request.number = kStates.count();
    if (const auto reply = call(request, kStates + 2s)) {
      std::copy_n(reply->values.begin(), std::min(reply->values.size(), texts.size()),
                  texts.begin());
      return texts;
    }
  } catch (const CommError& e) {
    log::debug(e.what());
  }
  // Rank 0 does not answer: of the others nothing is known.
  for (std::size_t rank = 1; rank < texts.size(); ++rank)
    texts[rank] = "cannot be asked, because rank 0 does not answer";
  const std::lock_guard lock(mutex_);
  if (!texts.empty()) texts[static_cast<std::size_t>(self_.rank)] = state();
  return texts;
}

}  // namespace floe::control
