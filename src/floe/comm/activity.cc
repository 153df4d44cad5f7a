#include "floe/comm/activity.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "floe/core/str.h"

namespace floe::comm {
namespace {

std::int64_t seconds_since(Activity::Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::seconds>(Activity::Clock::now() - begin).count();
}

}  // namespace

Activity& Activity::of_this_rank() {
  static auto* instance = new Activity;  // never destroyed: threads may ask while the process ends
  return *instance;
}

void Activity::begin(const char* part) {
  const std::lock_guard lock(mutex_);
  part_ = part;
  part_since_ = Clock::now();
  ++num_parts_;
}

void Activity::issued(const std::string& what) {
  const std::lock_guard lock(mutex_);
  last_issued_ = what;
  ++num_issued_;
}

void Activity::wait_begins(const std::string& what, WaitFor kind) {
  const std::lock_guard lock(mutex_);
  if (depth_++ > 0) return;
  waits_for_ = what;
  waits_kind_ = kind;
  wait_since_ = Clock::now();
  ++num_waits_;
}

void Activity::wait_ends() {
  const std::lock_guard lock(mutex_);
  if (--depth_ > 0) return;
  waits_for_.clear();
  const double seconds = std::chrono::duration<double>(Clock::now() - wait_since_).count();
  waited_.all_s += seconds;
  if (waits_kind_ == WaitFor::gather) waited_.gather_s += seconds;
  if (waits_kind_ == WaitFor::reduce) waited_.reduce_s += seconds;
}

Activity::Waited Activity::waited() const {
  const std::lock_guard lock(mutex_);
  return waited_;
}

std::optional<Activity::Wait> Activity::waiting() const {
  const std::lock_guard lock(mutex_);
  if (depth_ == 0) return std::nullopt;
  return Wait{waits_for_, std::chrono::seconds(seconds_since(wait_since_)), num_waits_};
}

std::optional<Activity::Part> Activity::working() const {
  const std::lock_guard lock(mutex_);
  if (depth_ > 0) return std::nullopt;
  return Part{part_, std::chrono::seconds(seconds_since(part_since_)), num_parts_};
}

std::string Activity::text() const {
  const std::lock_guard lock(mutex_);
  if (depth_ > 0) return str("waits in ", waits_for_, "\t", seconds_since(wait_since_));
  const std::string last = num_issued_ > 0 ? str(" (its last collective: ", last_issued_, ")") : "";
  return str(part_, last, "\t", seconds_since(part_since_));
}

std::string sentence_of_states(const std::vector<std::string>& texts,
                               const std::function<std::string(int)>& name) {
  struct State {
    std::string what;
    bool answers = true;
    std::int64_t seconds = 0;
    std::vector<std::string> ranks;
  };
  std::vector<State> states;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const std::string& text = texts[rank];
    const auto tab = text.find('\t');
    const std::string what =
        text.empty() ? "does not answer: it is stopped, or its host hangs" : text.substr(0, tab);
    std::int64_t seconds = 0;
    if (tab != std::string::npos)
      std::from_chars(text.data() + tab + 1, text.data() + text.size(), seconds);
    auto found = std::find_if(states.begin(), states.end(),
                              [&](const State& state) { return state.what == what; });
    if (found == states.end()) found = states.insert(states.end(), {what, !text.empty(), 0, {}});
    found->seconds = std::max(found->seconds, seconds);
    found->ranks.push_back(name(static_cast<int>(rank)));
  }
  // Who does not answer, or does what nobody else does, is the likelier cause.
  std::stable_sort(states.begin(), states.end(), [](const State& a, const State& b) {
    return std::pair(a.answers, a.ranks.size()) < std::pair(b.answers, b.ranks.size());
  });
  constexpr std::size_t kMostNames = 8;
  std::vector<std::string> parts;
  for (State& state : states) {
    const std::size_t more = state.ranks.size() - std::min(kMostNames, state.ranks.size());
    state.ranks.resize(state.ranks.size() - more);
    parts.push_back(str(join(state.ranks, ", "), more > 0 ? str(" and ", more, " more") : "", ": ",
                        state.what, state.seconds > 0 ? str(", since ", state.seconds, " s") : ""));
  }
  return join(parts, "; ");
}

}  // namespace floe::comm
