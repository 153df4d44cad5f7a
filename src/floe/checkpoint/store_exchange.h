// How ranks agree about a save or a load: over the world's store, so that nothing can come between
// the collectives of the training.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "floe/comm/world.h"

namespace floe::checkpoint {

// Note [Given up together]
// A rank that leaves a round with an error, because rank 0 does not answer, say, leaves a mark
// where it is looked for next: rank 0 in the place of its answer, another one in the place of its
// text in the round after. So what one gives up is given up by all, and nobody waits for what
// cannot come. Rounds are counted within a meeting, such as a save: whoever has left one in the
// middle is in step again at the next, however many rounds it has missed.

// Threads: collective calls from one thread at a time, hurry() from any.
class StoreExchange {
 public:
  // `name` must be the same on all ranks, and used once in the life of a world: or for single
  // rounds that are counted, so that each takes away what is left of the one before.
  StoreExchange(comm::World& world, std::string name, std::int64_t meetings_before = 0);

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }

  // Collective: what rank 0 makes of the texts of all ranks, by rank; `make` is called there alone.
  // `what` they meet for is for messages. A rank may take as long as it needs, as long as it is
  // alive: a slow disk is no failure. Throws CheckpointError when a rank has failed, is gone, or
  // does not even say what it is doing.
  // A rank sends its text and asks for the answer: two requests, however long they wait.
  using Make = std::function<std::string(const std::vector<std::string>&)>;
  std::string combine(const std::string& text, const std::string& what, const Make& make);
  // Collective: the texts of all ranks, by rank. All of them travel to all: only for what is short.
  std::vector<std::string> all_gather(const std::string& text, const std::string& what);
  // Collective: rank 0's text.
  std::string broadcast(const std::string& text, const std::string& what) {
    return combine(rank() == 0 ? text : "", what, [](const auto& texts) { return texts.front(); });
  }
  // Collective: what the first rank that has one says went wrong; empty when all is well.
  std::string first_problem(const std::string& problem, const std::string& what);

  // Collective: whatever became of the rounds so far, the ranks meet anew.
  void begin_meeting();

  // Until the next meeting calls give up after this time: some rank has failed and may never come.
  void hurry(std::chrono::milliseconds rest);

 private:
  using Clock = std::chrono::steady_clock;

  // Of this meeting.
  std::string key_of(std::int64_t round, const std::string& whose) const;
  // One round. `told`: the others have, or will have, this rank's text.
  std::string meet(std::int64_t round, const std::string& text, const std::string& what,
                   const Make& make, bool& told);
  // See Note [Given up together].
  void leave_mark(std::int64_t round, const std::string& why) noexcept;
  // The text that rank `who` leaves under the key.
  std::string wait_for(const std::string& key, int who, const std::string& what);
  // Throws CheckpointError when a rank has failed or rank 0 is gone.
  void check_others(const std::string& what);

  comm::World& world_;
  std::string name_;
  std::int64_t meeting_ = 0, round_ = 0;
  std::string last_answer_;         // the key of the round before, which all have read by now
  std::atomic<Clock::rep> latest_;  // of hurry()
};

}  // namespace floe::checkpoint
