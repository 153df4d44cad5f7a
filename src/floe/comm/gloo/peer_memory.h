// Memory of other processes of this host: who may read whose, and reading it.
//
// Note [Words that are taken back]
// A rank reads from another's tensor while that one goes on, so what it has read counts only if the
// other had not let go of the tensor by then. Each group of a process has a word in memory, random,
// at an address that is never used for anything else. The others learn both when they meet, and
// read the word again behind all data, in the same call. It is set to zero before a tensor that has
// not been read to its end can be let go. So data that comes with the word as it was is what the
// collective was called with: a process that gave up has another word, and so has one that got the
// number of a process which is gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace floe::comm {

// What a process says so that others can read its memory.
struct MemoryPlace {
  std::uint64_t host = 0;  // the running system and what numbers of processes mean; 0: do not read
  std::uint64_t pid = 0;
  std::uint64_t word_address = 0, word = 0;
};

// This process' word.
class OwnWord {
 public:
  OwnWord();
  MemoryPlace place() const;
  void take_back() noexcept;

 private:
  std::atomic<std::uint64_t>& place_;
  std::uint64_t value_;
};

class PeerMemory {
 public:
  explicit PeerMemory(const MemoryPlace& place) : place_(place) {}

  // Whether the system permits it, by a look at the word.
  bool can_be_read() const noexcept;
  // Throws Error when the memory cannot be read, or the word has been taken back.
  void read(void* to, std::uint64_t address, std::size_t bytes) const;

 private:
  MemoryPlace place_;
};

// Whether other processes could read these bytes of this one: memory that a device driver has
// mapped, such as CUDA's pinned one, is closed to them.
bool is_readable(const void* data, std::size_t bytes) noexcept;

// Processes that say the same run on the same system, since the same start of it, and mean the same
// by the number of a process; 0 where the system does not tell.
std::uint64_t host_of_pids();

// The setting kernel.yama.ptrace_scope; '0' where there is no Yama.
char yama_scope() noexcept;

// Whether this process may trace any other of its user, whatever Yama says (CAP_SYS_PTRACE).
bool may_trace() noexcept;

// Whether this process ends before its parent does: it dies with it, or a launcher that waits for
// its ranks has started it. Nobody knows of one that was started by hand.
bool ends_before_parent() noexcept;

// Where Yama lets no process read another's memory unless that one agrees (ptrace_scope 1): agrees
// to what the parent of this process has started, which are the ranks of its launcher. The system
// forgets it when the parent ends, so nothing is done where that may happen first.
void admit_siblings() noexcept;

// Bytes that this process has read from others.
std::int64_t peer_memory_bytes_read() noexcept;

}  // namespace floe::comm
