// Sends and receives between the ranks of a Gloo group, all of which `give_up` reaches.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "floe/comm/watch.h"

namespace c10d {
class ProcessGroupGloo;
}

namespace floe::comm {

// One that is under way.
struct Transfer;
using Part = std::shared_ptr<Transfer>;

// Note [Tags]
// A tag matches a send with its receive. Its lower half counts; its upper half is made of the size
// of what a rank sends to another, so that ranks which go different ways never get data that does
// not fit (Gloo ends the process on more than was asked for, and takes less without a word): they
// wait, and time out. Where the sizes fit, the ranks go on until they compare what they did.
// Messages about data that is read from memory have another upper half than data of that size; of
// each kind, which have a size of their own, the lower half is always the same modulo kMessages.
struct Tags {
  static constexpr int kMessages = 4;  // of a collective, from one rank to another
  std::uint32_t first = 0, sort = 0, message_sort = 0;
  int operator[](std::int64_t i) const { return tag(sort, i); }
  int message(int i) const { return tag(message_sort, i); }

 private:
  int tag(std::uint32_t upper, std::int64_t i) const {
    return static_cast<int>(upper << 16 | ((first + static_cast<std::uint32_t>(i)) & 0xffff));
  }
};

// Whether a wait ends with the timeout, or only with the transfer or `give_up`.
enum class Patience { timeout, none };

// Threads: every function may be called from any thread.
class Transfers {
 public:
  using Gloo = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
  // `names` are those of the ranks, for messages.
  Transfers(Gloo gloo, std::vector<std::string> names, std::chrono::milliseconds timeout);

  // Every rank takes tags in the same order: `count` for data of that many bytes, and those for
  // messages.
  Tags take_tags(std::int64_t bytes, int count = 1);

  Part send(const at::Tensor& tensor, int to, int tag);
  Part receive(const at::Tensor& tensor, int from, int tag);
  // The word of another rank that it has what was sent.
  Part receive_answer(const at::Tensor& tensor, int from, int tag);
  // Throws Error, which names the other rank, when it has failed.
  void finish(const Part& part, Patience patience = Patience::timeout);

  // What is under way fails, and what comes later; the first reason counts.
  void give_up(const std::string& reason);
  // Throws when that was done.
  void check();
  // The same to those who wait without a timeout, as if theirs were over.
  void time_out();

  const std::string& name_of(int rank) const { return names_[static_cast<std::size_t>(rank)]; }

 private:
  template <class F>
  Part tracked(int peer, F&& issue);
  void give_up_locked(const std::string& reason);
  bool try_slow_connections();
  bool is_connected(int peer);

  Gloo gloo_;
  const std::vector<std::string> names_;
  const std::chrono::milliseconds timeout_;
  std::mutex issue_;      // Gloo's group is called from the caller's thread and from workers
  std::string given_up_;  // why; empty while the group can be used
  std::vector<std::weak_ptr<Transfer>> under_way_;
  std::atomic<int> waits_for_{0};  // without a timeout
  std::atomic<std::uint32_t> next_tag_{0};
  Watch slow_connections_;  // last: ends before what it uses
};

}  // namespace floe::comm
