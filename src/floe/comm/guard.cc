#include "floe/comm/guard.h"

#include <chrono>
#include <exception>
#include <string>
#include <thread>

#include "floe/comm/cause.h"
#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::comm {

namespace {

// Rank 0 holds the blackboard: it stays a moment so that the others can still read the cause.
void let_others_read(const World& world) {
  if (world.rank() == 0 && world.size() > 1) std::this_thread::sleep_for(std::chrono::seconds(1));
}

// The others need not wait for a collective in which this rank is missing, nor this rank for them.
void leave(World& world, const std::string& cause) {
  world.announce_failure(cause);
  let_others_read(world);
  world.abort();
}

void tell(World& world, const std::string& cause) {
  log::error(cause);
  leave(world, cause);
}

}  // namespace

int guarded(World& world, const std::function<void()>& work) {
  try {
    work();
    return static_cast<int>(Exit::done);
  } catch (const CommError& e) {
    // Usually the echo of another rank's failure.
    const auto first = world.first_failure(std::chrono::seconds(2));
    log::error(e.what(), first ? str(" (the first failure was that of ", *first, ")") : "");
    leave(world, e.what());
    return static_cast<int>(e.exit());
  } catch (const Error& e) {
    tell(world, e.what());
    return static_cast<int>(e.exit());
  } catch (const std::exception& e) {
    tell(world, cause_of(e));
    return static_cast<int>(Exit::failed);
  }
}

}  // namespace floe::comm
