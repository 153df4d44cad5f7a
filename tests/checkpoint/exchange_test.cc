// How ranks agree about a save over the store, and what becomes of it when one of them gives up.
#include <gtest/gtest.h>

#include "floe/checkpoint/store_exchange.h"
#include "floe/core/error.h"
#include "tests/support/ranks.h"

namespace floe::checkpoint::exchange_test {
namespace {

using namespace std::chrono_literals;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CheckpointError& e) {
    return e.what();
  }
  return "";
}

// The others would else wait for it for ever, or take what it says in the next save for an answer
// in this one.
TEST_RANKS(Exchange, WhatOneGivesUpAloneIsGivenUpByAllAndTheNextSaveIsWell, 3) {
  const auto world = comm::World::join();
  StoreExchange exchange(*world, "saves");
  const auto texts = [&](const std::string& text, const std::string& what) {
    return exchange.all_gather(text + std::to_string(world->rank()), what);
  };
  const auto expected = [](const std::string& text) {
    return std::vector<std::string>{text + "0", text + "1", text + "2"};
  };
  const auto began = std::chrono::steady_clock::now();
  for (const int who : {1, 0, 2}) {
    const std::string name = "given up by rank " + std::to_string(who);
    exchange.begin_meeting();
    EXPECT_EQ(texts("a", "a save"), expected("a"));
    const std::string left = "left/" + std::to_string(who);
    if (world->rank() == who) {
      exchange.hurry(0ms);
      const std::string error = error_of([&] { texts("b", "a save"); });
      EXPECT_NE(error.find("did not come to a save within"), std::string::npos) << error;
      world->publish(left, "yes");
    } else {
      ASSERT_TRUE(world->lookup(left, 60s)) << "it has left before the others come";
      // They have its text of this round, unless they have it from rank 0.
      std::string error;
      if (who == 0)
        error = error_of([&] { texts("b", "a save"); });
      else
        EXPECT_EQ(texts("b", "a save"), expected("b"));
      if (who != 0) error = error_of([&] { texts("c", "a save"); });
      EXPECT_NE(error.find(name), std::string::npos) << error;
    }
    // They have missed different numbers of rounds, and are in step again.
    exchange.begin_meeting();
    EXPECT_EQ(texts("d", "another"), expected("d"));
    EXPECT_EQ(exchange.first_problem(world->rank() == 2 ? "no room" : "", "another"),
              "rank 2: no room");
    EXPECT_EQ(texts("e", "another"), expected("e"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, world->timeout()) << "nobody has waited";
  world->group()->barrier("done");
}

}  // namespace
}  // namespace floe::checkpoint::exchange_test
