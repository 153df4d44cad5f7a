// Large tensors between ranks of one host, from memory to memory.
//
// Note [Memory of one host]
// Sockets copy what goes through them twice and cost both sides the time of it. Between ranks of
// one host the receiver copies from the sender's memory instead, once, as MPI does
// (process_vm_readv):
//
//   sender                                         receiver
//   lends: sends its address and size     ----->   waits for that, and reads, piece by piece
//   settles: waits until it was read      <-----   tells that it has
//
// These messages go through Gloo as everything else does: a rank that is late, hangs or is gone is
// noticed there, in the same time and with the same words. What may be read is in
// Note [Words that are taken back]. Two ranks send to each other in this way when each can read the
// other's memory, which they try when the group is made, and only what is large enough. There is no
// way back to sockets later: a rank that could ask for it would wait for one that asks as well.
// FLOE_SAME_HOST_MEMORY=0 on one of them switches it off for the two.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "floe/comm/backends.h"
#include "floe/comm/gloo/peer_memory.h"
#include "floe/comm/gloo/transfers.h"
#include "floe/core/bytes.h"

namespace floe::comm {

// Data of fewer bytes goes through sockets: two more messages cost more than copies do.
constexpr std::int64_t kReadBytes = 128 * kKiB;

// What this system says about reading another process' memory.
struct SystemRules {
  int read_error = 0;           // of process_vm_readv; 0: it works
  bool tells_processes = true;  // which system it is, and what numbers of processes mean there
  char yama_scope = '0';
  bool may_trace = false;
};
// What of that closes the memory of ranks to each other; see closed_memory().
std::optional<ClosedMemory> closed_by(const SystemRules& rules);

class HostMemory {
 public:
  HostMemory(Transfers& transfers, int rank, int size);
  // Collective: finds out who can read whose memory, if this rank wants that. `here`: the ranks of
  // this host, itself among them.
  void meet(const std::vector<int>& here, bool wanted);

  // Whether data of that many bytes goes from memory to memory between this rank and `peer`, in
  // either direction; both say the same.
  bool reaches(int peer, std::int64_t bytes) const {
    return bytes >= kReadBytes && peers_[static_cast<std::size_t>(peer)].has_value();
  }
  // How many ranks are reached in this way.
  int num_reached() const;

  // Nothing that is lent may be read from now on.
  void take_back() noexcept { word_.take_back(); }

  // The message in which a tensor is lent.
  struct Announcement {
    std::uint64_t address = 0;
    std::int64_t bytes = 0;
  };

  // The tensors of this rank that others read in one collective. Where it ends before they have,
  // what they read does not count.
  class Loans {
   public:
    Loans(HostMemory& memory, Patience patience) : memory_(memory), patience_(patience) {}
    ~Loans();
    Loans(const Loans&) = delete;
    Loans& operator=(const Loans&) = delete;
    // The announcement is message `message` of the tags, the answer the one behind it.
    void lend(const at::Tensor& tensor, int to, const Tags& tags, int message = 0);
    // Waits until all has been read.
    void settle();

   private:
    HostMemory& memory_;
    Patience patience_;
    // The same for every rank that it is lent to.
    at::Tensor readable(const at::Tensor& tensor);
    std::vector<at::Tensor> tensors_, copied_, copies_;  // of what is closed to others
    std::vector<Part> parts_;
  };

  // What another rank lends to this one.
  class Loan {
   public:
    // `message` as in `lend`. Does not wait.
    Loan(HostMemory& memory, Patience patience, int from, const Tags& tags, int message = 0);
    // Waits for the announcement, which must be of that many bytes.
    void open(std::int64_t bytes);
    // Reads as many bytes as `to` has, from `offset` on.
    void read(std::int64_t offset, const at::Tensor& to) const;
    // Tells that all has been read.
    void close();

   private:
    HostMemory* memory_;
    Patience patience_;
    int from_, answer_tag_;
    std::shared_ptr<Announcement> announced_;
    Part arriving_;
  };

 private:
  Transfers& transfers_;
  int rank_;
  OwnWord word_;
  std::vector<std::optional<PeerMemory>> peers_;  // that this rank and they can read each other
};

}  // namespace floe::comm
