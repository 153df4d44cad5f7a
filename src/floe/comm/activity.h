// What this process is doing, for other ranks that wait for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace floe::comm {

// What the host waits for: parameters (all-gathers), sums over ranks (reduce-scatters and
// all-reduces: gradients, and the agreement of a step), or anything else.
enum class WaitFor : int { other, gather, reduce };

// One per process, as a process is one rank. Threads: every function may be called from any thread.
class Activity {
 public:
  using Clock = std::chrono::steady_clock;

  static Activity& of_this_rank();

  // The part of a step or of the run, such as "reads data"; until the next one.
  void begin(const char* part);
  // A collective was issued.
  void issued(const std::string& what);
  // The host waits for what was issued, or for a device, until the object ends.
  class Waiting {
   public:
    explicit Waiting(const std::string& what, WaitFor kind = WaitFor::other) {
      of_this_rank().wait_begins(what, kind);
    }
    ~Waiting() { of_this_rank().wait_ends(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
  };
  struct Wait {
    std::string what;
    std::chrono::seconds since{0};
    std::int64_t number = 0;  // of the wait, in this process
  };
  // Seconds of all waits that are over; `all_s` has the others in it.
  struct Waited {
    double gather_s = 0, reduce_s = 0, all_s = 0;
  };
  Waited waited() const;
  // The wait under way.
  std::optional<Wait> waiting() const;

  // What the host does while it waits for nobody; nothing while it waits.
  struct Part {
    std::string what;
    std::chrono::seconds since{0};
    std::int64_t number = 0;  // of the part, in this process
  };
  std::optional<Part> working() const;

  // What it is doing, a tab, for how many seconds: "waits in all-gather 'layers.3' of world\t12".
  std::string text() const;

 private:
  void wait_begins(const std::string& what, WaitFor kind);
  void wait_ends();

  mutable std::mutex mutex_;
  const char* part_ = "starts";
  Clock::time_point part_since_ = Clock::now(), wait_since_;
  std::string waits_for_, last_issued_;
  std::int64_t num_waits_ = 0, num_issued_ = 0, num_parts_ = 0;
  Waited waited_;
  WaitFor waits_kind_ = WaitFor::other;
  int depth_ = 0;  // a wait inside of a wait is part of it
};

// The states of all ranks as a sentence: those who do the same stand together, a rank that does not
// answer is said to. `texts` are those of text(), by rank; `name` gives ranks their names.
std::string sentence_of_states(const std::vector<std::string>& texts,
                               const std::function<std::string(int)>& name);

}  // namespace floe::comm
