// How ranks know of each other: who is there, what they tell each other, and who has failed.
//
// Note [Control plane]
// Every rank holds one connection to rank 0, apart from the collectives. Over it a rank says who it
// is before anything else (strangers, ranks of another job and a rank that is there twice are
// refused), shares small values in a table that rank 0 keeps, and tells its failure, which rank 0
// passes on to all. A rank whose connection ends without a word has failed as well. Nothing is
// polled: between steps no byte travels but the kernel's own questions (see Note [Peers that are
// gone]). No call waits without an end, whatever has become of rank 0.
//
// c10d's TCPStore was not enough: its calls wait without a limit for a server that hangs, it takes
// whoever connects, and it tells nobody that a rank is gone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "floe/control/socket.h"
#include "floe/control/table.h"

namespace floe::control {

using std::chrono::milliseconds;

// Who a rank is, as it says itself when it comes.
struct Member {
  int rank = 0, world_size = 1, local_rank = 0;
  std::string job;      // what the scheduler or launcher calls it; empty: unknown
  std::string run;      // the run's folder; empty: unknown
  std::string version;  // of floe
  std::string host, host_id;
  std::string address;  // of its host, where the other ranks can reach it
  std::string device;
  std::int64_t pid = 0;
};

struct Failure {
  int rank = 0;
  std::string cause;
  bool is_gone = false;   // without a word; else it has told the cause itself
  std::string host = {};  // its own; empty: unknown
  bool is_usage = false;  // a wrong configuration or usage, for which starting again is no help
};

// Threads: every function may be called from any thread, but for leave().
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  // One process, rank 0 of however many it says.
  static std::unique_ptr<ControlPlane> alone(const Member& self);
  // Collective: rank 0 serves, the others join. Returns when all ranks are there.
  // Throws CommError that names the ranks which did not come within the timeout, or the one that
  // failed meanwhile.
  static std::unique_ptr<ControlPlane> serve(const Member& self, UniqueFd listening,
                                             milliseconds timeout);
  // `where` is asked before every attempt: rank 0 may have come a second time, at another place. It
  // returns nothing, and why, while it is not known.
  using Where = std::function<std::optional<Address>(std::string& why)>;
  static std::unique_ptr<ControlPlane> join(Member self, const Where& where, milliseconds timeout);

  int own_rank() const { return self_.rank; }
  // All ranks, by rank.
  const std::vector<Member>& members() const { return members_; }
  bool on_several_hosts() const;
  // "rank 3", with " on HOST" where there are several.
  std::string name_of(int rank) const;

  // What rank 0's table answers; nothing when the keys it waits for do not come in time. Throws
  // CommError when rank 0 is gone or does not answer at all; with `unless_failed` also as soon as a
  // rank has failed or this one has given up.
  std::optional<Reply> call(const Request& request, milliseconds wait, bool unless_failed = false);

  // A request that waits for keys. It is sent once, however often the answer is looked for; when
  // this ends without one, rank 0 is told that nobody waits any more.
  class Question {
   public:
    Question(ControlPlane& plane, const Request& request);
    ~Question();
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;
    // Once. Nothing: not within this time. Throws CommError when rank 0 is gone.
    std::optional<Reply> wait(milliseconds time);

   private:
    ControlPlane& plane_;
    std::int64_t id_;
    bool open_ = true;
  };

  // Tells all ranks why this one ends. The first failure of all stays. Never throws.
  void announce_failure(const std::string& cause, bool is_usage = false) noexcept;
  std::optional<Failure> first_failure(milliseconds wait);
  bool has_failed() const;
  // This rank works with the others no more: calls that are for that end, whatever rank 0 does.
  void give_up() noexcept;
  // Why rank 0 cannot be asked any more; nothing while it can.
  std::optional<std::string> lost() const;

  // What rank 0 has been asked and told so far, by all ranks; 0 on the others.
  std::int64_t num_requests() const;

  // What this rank is doing, in words, when another rank asks.
  void set_state(std::function<std::string()> state);
  // What every rank is doing, by rank; a rank that does not answer has no text.
  std::vector<std::string> states();
  // The same of one rank: nobody else is asked.
  std::string state_of(int rank);

  // Whether rank 0 answers at all.
  bool rank_0_answers();

  // This rank has no more to say. Rank 0 stays a moment for those who have not said so. Later calls
  // fail. Never throws.
  virtual void leave() noexcept = 0;

 protected:
  explicit ControlPlane(Member self) : self_(std::move(self)) {}

  // With the lock held: nothing while the answer is not there.
  virtual std::int64_t begin_call(const Request& request, Clock::time_point deadline) = 0;
  virtual std::optional<Reply> take_reply(std::int64_t id) = 0;
  // Nobody waits for the answer any more.
  virtual void drop_call(std::int64_t id) = 0;
  virtual void tell_failure(const Failure& failure) = 0;

  // With the lock held: the first one stays, and wakes whoever waits.
  void note_failure(const Failure& failure);
  std::string state() const;
  // "rank 3 on h1: it was killed"; also while not all ranks are known.
  std::string describe(const Failure& failure) const;
  // Throws what a rank ends with that waited for the others when one failed.
  [[noreturn]] void could_not_meet(const Failure& failure) const;

  Member self_;
  std::vector<Member> members_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  bool given_up_ = false;
  std::string gone_;  // why rank 0 cannot be asked any more; empty: it can
  std::int64_t num_requests_ = 0;
  std::function<std::string()> state_;
};

}  // namespace floe::control
