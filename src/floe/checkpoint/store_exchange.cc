#include "floe/checkpoint/store_exchange.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::checkpoint {
namespace {

using namespace std::chrono_literals;

// A wait in the store would keep other users of its connection waiting; a look does not.
constexpr auto kPause = 2ms;
constexpr auto kCheckOthers = 1s;

}  // namespace

StoreExchange::StoreExchange(comm::World& world, std::string name)
    : world_(world),
      name_(std::move(name)),
      latest_(Clock::time_point::max().time_since_epoch().count()) {}

void StoreExchange::hurry(std::chrono::milliseconds rest) {
  latest_ = std::min(latest_.load(), (Clock::now() + rest).time_since_epoch().count());
}

std::string StoreExchange::wait_for(const std::string& key, const std::string& who,
                                    const std::string& what) {
  const auto begin = Clock::now();
  const auto end = begin + world_.timeout();
  for (auto next_check = begin + kCheckOthers;;) {
    if (auto text = world_.lookup(key, 0ms)) return *text;
    const auto now = Clock::now();
    if (now > next_check) {
      next_check = now + kCheckOthers;
      check_others(what);
    }
    require<CheckpointError>(now < end && now.time_since_epoch().count() < latest_.load(), who,
                             " did not come to ", what, " within ",
                             std::chrono::duration_cast<std::chrono::seconds>(now - begin).count(),
                             " s; its log says why");
    std::this_thread::sleep_for(kPause);
  }
}

void StoreExchange::check_others(const std::string& what) {
  try {
    world_.publish(str(name_, "/alive/", rank()), "");
  } catch (const std::exception&) {
    throw CheckpointError(str("the store is gone, so rank 0 must have ended during ", what));
  }
  if (const auto failure = world_.first_failure(0ms))
    throw CheckpointError(str(what, " was given up because of ", *failure));
}

void StoreExchange::leave() noexcept {
  try {
    hurry(5s);
    all_gather("", "the end of the checkpoints");
    if (rank() != 0) world_.publish(str(name_, "/left/", rank()), "");
    for (int other = 1; rank() == 0 && other < size(); ++other)
      wait_for(str(name_, "/left/", other), str("rank ", other), "the end of the checkpoints");
  } catch (const std::exception& e) {
    log::debug(e.what());
  }
}

std::vector<std::string> StoreExchange::all_gather(const std::string& text,
                                                   const std::string& what) {
  if (size() == 1) return {text};
  const std::string key = str(name_, "/", round_++, "/");
  if (rank() != 0) {
    world_.publish(key + std::to_string(rank()), text);
    return nlohmann::json::parse(wait_for(key + "all", "rank 0", what))
        .get<std::vector<std::string>>();
  }
  std::vector<std::string> texts{text};
  for (int other = 1; other < size(); ++other)
    texts.push_back(wait_for(key + std::to_string(other), str("rank ", other), what));
  world_.publish(key + "all", nlohmann::json(texts).dump(-1, ' ', false,
                                                         nlohmann::json::error_handler_t::replace));
  return texts;
}

std::string StoreExchange::first_problem(const std::string& problem, const std::string& what) {
  const std::vector<std::string> problems = all_gather(problem, what);
  for (std::size_t i = 0; i < problems.size(); ++i)
    if (!problems[i].empty())
      return problems.size() == 1 ? problems[i] : str("rank ", i, ": ", problems[i]);
  return "";
}

}  // namespace floe::checkpoint
