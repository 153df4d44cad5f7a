#include "floe/checkpoint/store_exchange.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::checkpoint {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr milliseconds kFailedPatience = 10s;  // for ranks that have failed
constexpr auto kNever = std::chrono::steady_clock::time_point::max();
// In front of a reason. No text of a rank begins so.
constexpr std::string_view kMark = "\x01given up: ";

// What another rank has given up: it need not be told to the others once more.
struct GivenUp : CheckpointError {
  GivenUp(const std::string& what, const std::string& given_why)
      : CheckpointError(str(what, " was given up by ", given_why)), why(given_why) {}
  std::string why;
};

}  // namespace

StoreExchange::StoreExchange(comm::World& world, std::string name, std::int64_t meetings_before)
    : world_(world),
      name_(std::move(name)),
      meeting_(meetings_before),
      latest_(kNever.time_since_epoch().count()) {
  if (meetings_before > 0) last_answer_ = str(name_, "/", meetings_before - 1, "/0/all");
}

void StoreExchange::begin_meeting() {
  ++meeting_;
  round_ = 0;
  latest_ = kNever.time_since_epoch().count();
}

std::string StoreExchange::key_of(std::int64_t round, const std::string& whose) const {
  return str(name_, "/", meeting_, "/", round, "/", whose);
}

void StoreExchange::hurry(std::chrono::milliseconds rest) {
  latest_ = std::min(latest_.load(), (Clock::now() + rest).time_since_epoch().count());
}

std::string StoreExchange::wait_for(const std::string& key, int who, const std::string& what) {
  const auto begin = Clock::now();
  auto ask_at = begin + world_.timeout();
  const auto between = [&] {
    check_others(what);
    const auto now = Clock::now();
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - begin).count();
    require<CheckpointError>(now.time_since_epoch().count() < latest_.load(), world_.name_of(who),
                             " did not come to ", what, " within ", waited, " s; its log says why");
    if (now < ask_at) return;
    const std::string state = world_.state_of(who);
    require<CheckpointError>(!state.empty(), world_.name_of(who), " did not come to ", what,
                             " within ", waited,
                             " s and does not answer: its process is stopped, or its host hangs");
    log::warn("waiting for ", world_.name_of(who), " to come to ", what, " since ", waited,
              " s; it is alive: ", state);
    ask_at = now + world_.timeout();
  };
  std::string text = world_.await(key, between);
  if (text.starts_with(kMark)) throw GivenUp(what, text.substr(kMark.size()));
  return text;
}

void StoreExchange::check_others(const std::string& what) {
  // A rank that has failed may still have its part of a save under way.
  if (const auto failure = world_.first_failure(0ms)) {
    hurry(kFailedPatience);
    require<CheckpointError>(!world_.failed_rank_is_gone(), what, " was given up because of ",
                             *failure);
  }
  if (const auto lost = world_.lost()) throw CheckpointError(str(what, " was given up: ", *lost));
}

std::vector<std::string> StoreExchange::all_gather(const std::string& text,
                                                   const std::string& what) {
  // As CBOR: texts may have any bytes.
  const std::string all = combine(text, what, [](const std::vector<std::string>& texts) {
    nlohmann::json list = nlohmann::json::array();
    for (const std::string& one : texts)
      list.push_back(nlohmann::json::binary({one.begin(), one.end()}));
    std::string bytes;
    nlohmann::json::to_cbor(list, nlohmann::detail::output_adapter<char>(bytes));
    return bytes;
  });
  std::vector<std::string> texts;
  for (const nlohmann::json& one : nlohmann::json::from_cbor(all))
    texts.emplace_back(one.get_binary().begin(), one.get_binary().end());
  return texts;
}

std::string StoreExchange::combine(const std::string& text, const std::string& what,
                                   const Make& make) {
  if (size() == 1) return make({text});
  const std::int64_t round = round_++;
  bool told = false;
  try {
    return meet(round, text, what, make, told);
  } catch (const GivenUp& e) {
    if (rank() == 0) leave_mark(round, e.why);
    throw;
  } catch (const std::exception& e) {
    leave_mark(told ? round + 1 : round, str(world_.name_of(rank()), ": ", e.what()));
    throw;
  }
}

void StoreExchange::leave_mark(std::int64_t round, const std::string& why) noexcept {
  try {
    const std::string key = key_of(round, rank() == 0 ? "all" : std::to_string(rank()));
    world_.publish(key, str(kMark, why));
  } catch (const std::exception& e) {
    log::debug("nobody could be told: ", e.what());  // rank 0 is gone, and all know it
  }
}

std::string StoreExchange::meet(std::int64_t round, const std::string& text,
                                const std::string& what, const Make& make, bool& told) {
  if (rank() != 0) {
    world_.publish(key_of(round, std::to_string(rank())), text);
    told = true;
    return wait_for(key_of(round, "all"), 0, what);
  }
  std::vector<std::string> texts{text};
  for (int other = 1; other < size(); ++other) {
    const std::string from = key_of(round, std::to_string(other));
    texts.push_back(wait_for(from, other, what));
    world_.forget(from);
  }
  if (!last_answer_.empty()) world_.forget(last_answer_);
  last_answer_ = key_of(round, "all");
  const std::string answer = make(texts);
  world_.publish(last_answer_, answer);
  return answer;
}

std::string StoreExchange::first_problem(const std::string& problem, const std::string& what) {
  return combine(problem, what, [this](const std::vector<std::string>& problems) -> std::string {
    const auto found = std::find_if(problems.begin(), problems.end(),
                                    [](const std::string& each) { return !each.empty(); });
    if (found == problems.end()) return "";
    if (problems.size() == 1) return *found;
    return str(world_.name_of(static_cast<int>(found - problems.begin())), ": ", *found);
  });
}

}  // namespace floe::checkpoint
