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
constexpr milliseconds kSlice = 500ms;         // how late a failure may be noticed

}  // namespace

StoreExchange::StoreExchange(comm::World& world, std::string name)
    : world_(world),
      name_(std::move(name)),
      latest_(Clock::time_point::max().time_since_epoch().count()) {}

void StoreExchange::hurry(std::chrono::milliseconds rest) {
  latest_ = std::min(latest_.load(), (Clock::now() + rest).time_since_epoch().count());
}

std::string StoreExchange::wait_for(const std::string& key, int who, const std::string& what) {
  const auto begin = Clock::now();
  auto ask_at = begin + world_.timeout();
  for (;;) {
    if (auto text = world_.lookup(key, kSlice)) return *text;
    check_others(what);
    const auto now = Clock::now();
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - begin).count();
    require<CheckpointError>(now.time_since_epoch().count() < latest_.load(), world_.name_of(who),
                             " did not come to ", what, " within ", waited, " s; its log says why");
    if (now < ask_at) continue;
    const std::string state = world_.states()[static_cast<std::size_t>(who)];
    require<CheckpointError>(!state.empty(), world_.name_of(who), " did not come to ", what,
                             " within ", waited,
                             " s and does not answer: its process is stopped, or its host hangs");
    log::warn("waiting for ", world_.name_of(who), " to come to ", what, " since ", waited,
              " s; it is alive: ", state);
    ask_at = now + world_.timeout();
  }
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
  if (size() == 1) return {text};
  const std::string key = str(name_, "/", round_++, "/");
  if (rank() != 0) {
    world_.publish(key + std::to_string(rank()), text);
    return nlohmann::json::parse(wait_for(key + "all", 0, what)).get<std::vector<std::string>>();
  }
  std::vector<std::string> texts{text};
  for (int other = 1; other < size(); ++other) {
    const std::string from = key + std::to_string(other);
    texts.push_back(wait_for(from, other, what));
    world_.forget(from);
  }
  if (!last_answer_.empty()) world_.forget(last_answer_);
  last_answer_ = key + "all";
  world_.publish(last_answer_, nlohmann::json(texts).dump(
                                   -1, ' ', false, nlohmann::json::error_handler_t::replace));
  return texts;
}

std::string StoreExchange::first_problem(const std::string& problem, const std::string& what) {
  const std::vector<std::string> problems = all_gather(problem, what);
  for (std::size_t i = 0; i < problems.size(); ++i)
    if (!problems[i].empty())
      return problems.size() == 1 ? problems[i]
                                  : str(world_.name_of(static_cast<int>(i)), ": ", problems[i]);
  return "";
}

}  // namespace floe::checkpoint
