#include "floe/comm/gloo/peer_memory.h"

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <span>
#include <string>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/host.h"

namespace floe::comm {
namespace {

using Word = std::atomic<std::uint64_t>;

std::atomic<std::int64_t> bytes_read{0};

// Others may read a word as long as this process lives, whatever became of its group.
Word& new_word() {
  static std::mutex mutex;
  static auto& words = *new std::deque<Word>;
  const std::lock_guard lock(mutex);
  return words.emplace_back(0);
}

// Not zero, and no other process has it, forked ones neither.
std::uint64_t random_value() {
  std::uint64_t value = 0;
  while (value == 0)
    if (::getrandom(&value, sizeof value, 0) != sizeof value)
      throw Error(str("the system gives no random number: ", std::strerror(errno)));
  return value;
}

iovec local(void* data, std::size_t bytes) { return {data, bytes}; }
iovec remote(std::uint64_t address, std::size_t bytes) {
  return {reinterpret_cast<void*>(address), bytes};  // NOLINT(performance-no-int-to-ptr): elsewhere
}

}  // namespace

OwnWord::OwnWord() : place_(new_word()), value_(random_value()) { place_ = value_; }

MemoryPlace OwnWord::place() const {
  return {host_of_pids(), static_cast<std::uint64_t>(::getpid()),
          reinterpret_cast<std::uint64_t>(&place_), value_};
}

void OwnWord::take_back() noexcept {
  place_ = 0;
  // Whatever is written to a tensor comes after it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool PeerMemory::can_be_read() const noexcept {
  std::uint64_t word = 0;
  const iovec here = local(&word, sizeof word), there = remote(place_.word_address, sizeof word);
  return ::process_vm_readv(static_cast<pid_t>(place_.pid), &here, 1, &there, 1, 0) ==
             static_cast<ssize_t>(sizeof word) &&
         word == place_.word;
}

void PeerMemory::read(void* to, std::uint64_t address, std::size_t bytes) const {
  // In this order: the system fills one after the other. See Note [Words that are taken back].
  std::uint64_t word = 0;
  const std::array here{local(to, bytes), local(&word, sizeof word)};
  const std::array there{remote(address, bytes), remote(place_.word_address, sizeof word)};
  const ssize_t got = ::process_vm_readv(static_cast<pid_t>(place_.pid), here.data(), here.size(),
                                         there.data(), there.size(), 0);
  require(got >= 0, "its memory cannot be read: ", std::strerror(errno));
  require(static_cast<std::size_t>(got) == bytes + sizeof word,
          "its memory cannot be read to the end");
  require(word == place_.word, "it has given up what this rank was reading");
  bytes_read += static_cast<std::int64_t>(bytes);
}

bool is_readable(const void* data, std::size_t bytes) noexcept {
  if (bytes == 0) return true;
  std::array<char, 2> ends{};
  const auto begin = reinterpret_cast<std::uint64_t>(data);
  const iovec here = local(ends.data(), ends.size());
  const std::array there{remote(begin, 1), remote(begin + bytes - 1, 1)};
  return ::process_vm_readv(::getpid(), &here, 1, there.data(), there.size(), 0) ==
         static_cast<ssize_t>(ends.size());
}

std::uint64_t host_of_pids() {
  const std::string boot = boot_id();
  std::array<char, 64> space{};
  const ssize_t size = ::readlink("/proc/self/ns/pid", space.data(), space.size());
  if (boot.empty() || size <= 0) return 0;
  const std::string both = boot + std::string(space.data(), static_cast<std::size_t>(size));
  const std::string digest = sha256_hex(std::as_bytes(std::span(both)));
  return std::stoull(digest.substr(0, 15), nullptr, 16);
}

char yama_scope() noexcept {
  char scope = '0';
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  return scope;
}

bool may_trace() noexcept {
  constexpr int kSysPtrace = 19;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t capabilities = 0;
    if (word == "CapEff:" && status >> std::hex >> capabilities)
      return (capabilities >> kSysPtrace & 1) != 0;
  }
  return false;
}

bool ends_before_parent() noexcept {
  int signal = 0;
  if (::prctl(PR_GET_PDEATHSIG, &signal, 0, 0, 0) == 0 && signal != 0) return true;
  constexpr std::array kOfLaunchers{
      "TORCHELASTIC_RUN_ID", "SLURM_PROCID",        "OMPI_COMM_WORLD_RANK", "PMI_RANK",
      "PMIX_RANK",           "MV2_COMM_WORLD_RANK", "HOROVOD_RANK"};
  return std::any_of(kOfLaunchers.begin(), kOfLaunchers.end(), [](const char* variable) {
    const char* value = std::getenv(variable);
    return value && *value;
  });
}

void admit_siblings() noexcept {
  const pid_t parent = ::getppid();
  // Process 1 has started all others.
  if (yama_scope() == '1' && parent > 1 && ends_before_parent())
    ::prctl(PR_SET_PTRACER, parent, 0, 0, 0);
}

std::int64_t peer_memory_bytes_read() noexcept { return bytes_read; }

}  // namespace floe::comm
