// Tests with several real ranks: the test program is there once per rank, each time as freshly
// started; see Note [Spare process].
//
//   TEST_RANKS(Engine, TrainsLikeOneProcess, 2) {   // the body runs in 2 processes
//     auto world = comm::World::join();
//     ...
//   }
//
// The test passes when every rank's body passes; a rank that fails, crashes or outlives the time
// limit fails it, with that rank's output.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "floe/comm/world.h"
#include "tests/support/device.h"

namespace floe::test {

// True in a process that is a rank of a running test.
bool is_rank();

struct RanksOutcome {
  std::vector<int> exit_codes;       // 128 + signal for killed ones; 124 for the time limit
  std::vector<std::string> outputs;  // stdout and stderr
  double seconds = 0;
};

// Starts `ranks` ranks of this program that run only the given test's body. The environment is that
// of now.
RanksOutcome start_ranks(const std::string& suite, const std::string& name, int ranks,
                         std::chrono::seconds limit);

// Runs the body here when this process is a rank, else starts the ranks and expects them to pass.
void run_on_ranks(const std::string& suite, const std::string& name, int ranks,
                  const std::function<void()>& body,
                  std::chrono::seconds limit = std::chrono::seconds(240));

// Whether FLOE_TEST_BACKEND asks for ranks over NCCL.
bool nccl_is_asked_for();

struct JoinOptions {
  std::chrono::seconds timeout{120};
  bool over_nccl = nccl_is_asked_for();  // else Gloo
};
// The world of this rank, on the device of the test.
std::shared_ptr<comm::World> join_world(const JoinOptions& options = {});

}  // namespace floe::test

#define TEST_RANKS(suite, name, ranks)                                                        \
  static void suite##name##Body();                                                            \
  TEST(suite, name) { ::floe::test::run_on_ranks(#suite, #name, ranks, &suite##name##Body); } \
  static void suite##name##Body()
