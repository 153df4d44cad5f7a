#include "floe/comm/gloo/host_memory.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "floe/comm/backends.h"
#include "floe/core/error.h"

namespace floe::comm {
namespace {

// So much is read at once: `give_up` is heard in between.
constexpr std::int64_t kPieceBytes = 4 * kMiB;

// A message that lives as long as Gloo needs it, and is none of torch's memory.
template <class T>
at::Tensor tensor_of(const std::shared_ptr<T>& message) {
  return at::from_blob(
      message.get(), {static_cast<std::int64_t>(sizeof(T))}, [message](void*) {}, at::kByte);
}

template <class T>
Part send_message(Transfers& transfers, const T& message, int to, int tag) {
  return transfers.send(tensor_of(std::make_shared<T>(message)), to, tag);
}

// What each of these ranks says to this one, which says `mine` to all or something to each.
template <class T, class F>
std::vector<T> exchange(Transfers& transfers, const std::vector<int>& ranks, int tag, F&& mine) {
  std::vector<std::shared_ptr<T>> theirs;
  std::vector<Part> parts;
  for (const int rank : ranks) {
    theirs.push_back(std::make_shared<T>());
    parts.push_back(transfers.receive(tensor_of(theirs.back()), rank, tag));
  }
  for (std::size_t i = 0; i < ranks.size(); ++i)
    parts.push_back(send_message<T>(transfers, mine(i), ranks[i], tag));
  for (const Part& part : parts) transfers.finish(part);
  std::vector<T> said;
  for (const auto& one : theirs) said.push_back(*one);
  return said;
}

}  // namespace

bool wants_memory_of_host() {
  const char* text = std::getenv("FLOE_SAME_HOST_MEMORY");
  const std::string_view value = text && *text ? text : "1";
  require<ConfigError>(value == "0" || value == "1", "FLOE_SAME_HOST_MEMORY is '", value,
                       "', not 0 or 1");
  return value == "1";
}

std::optional<ClosedMemory> closed_by(const SystemRules& rules) {
  if (rules.read_error != 0)
    return ClosedMemory{
        str("process_vm_readv is refused (", std::strerror(rules.read_error), ")"),
        "In a container, permit it in the seccomp profile to spare the CPU those copies."};
  if (!rules.tells_processes)
    return ClosedMemory{
        "/proc/sys/kernel/random/boot_id or /proc/self/ns/pid cannot be read",
        "In a container, mount /proc with both of them to spare the CPU those copies."};
  const std::string scope = str("kernel.yama.ptrace_scope is ", rules.yama_scope);
  if (rules.yama_scope == '3')  // not even who may trace, and until the next start
    return ClosedMemory{scope,
                        "It cannot be changed while the system runs: to spare the CPU those "
                        "copies, the administrator sets it to 1 in /etc/sysctl.d and restarts the "
                        "machine."};
  if (rules.yama_scope == '2' && !rules.may_trace)
    return ClosedMemory{scope, "The administrator may set it to 1 to spare the CPU those copies."};
  return std::nullopt;
}

std::optional<ClosedMemory> closed_memory() {
  if (!wants_memory_of_host())
    return ClosedMemory{"FLOE_SAME_HOST_MEMORY is 0", "Unset it to spare the CPU those copies."};
  const int number = 0;
  return closed_by({.read_error = is_readable(&number, sizeof number) ? 0 : errno,
                    .tells_processes = host_of_pids() != 0,
                    .yama_scope = yama_scope(),
                    .may_trace = may_trace()});
}

bool memory_needs_launcher() { return yama_scope() == '1' && !may_trace(); }

HostMemory::HostMemory(Transfers& transfers, int rank, int size)
    : transfers_(transfers), rank_(rank), peers_(static_cast<std::size_t>(size)) {}

int HostMemory::num_reached() const {
  return static_cast<int>(
      std::count_if(peers_.begin(), peers_.end(), [](const auto& peer) { return !!peer; }));
}

void HostMemory::meet(const std::vector<int>& here, bool wanted) {
  const Tags tags = transfers_.take_tags(sizeof(MemoryPlace));
  std::vector<int> others;
  for (const int rank : here)
    if (rank != rank_) others.push_back(rank);
  const MemoryPlace own = wanted ? word_.place() : MemoryPlace{};
  const auto places =
      exchange<MemoryPlace>(transfers_, others, tags.message(0), [&](std::size_t) { return own; });
  struct Candidate {
    int rank;
    PeerMemory memory;
  };
  std::vector<Candidate> left;
  for (std::size_t i = 0; i < others.size(); ++i)
    if (own.host != 0 && places[i].host == own.host)
      left.push_back({others[i], PeerMemory(places[i])});

  // Where it does not work at once it may when both have agreed.
  for (const bool agreed : {false, true}) {
    std::vector<int> ranks;
    for (const Candidate& one : left) ranks.push_back(one.rank);
    if (agreed) {
      if (!ranks.empty()) admit_siblings();
      exchange<char>(transfers_, ranks, tags.message(2), [](std::size_t) { return 'y'; });
    }
    std::vector<char> mine;
    for (const Candidate& one : left) mine.push_back(one.memory.can_be_read() ? 'y' : 'n');
    const auto theirs = exchange<char>(transfers_, ranks, tags.message(agreed ? 3 : 1),
                                       [&](std::size_t i) { return mine[i]; });
    std::vector<Candidate> refused;
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (mine[i] == 'y' && theirs[i] == 'y')
        peers_[static_cast<std::size_t>(left[i].rank)] = left[i].memory;
      else
        refused.push_back(left[i]);
    }
    left = std::move(refused);
  }
}

HostMemory::Loans::~Loans() {
  if (!tensors_.empty()) memory_.take_back();
}

at::Tensor HostMemory::Loans::readable(const at::Tensor& tensor) {
  if (is_readable(tensor.const_data_ptr(), tensor.nbytes())) return tensor;
  for (std::size_t i = 0; i < copied_.size(); ++i)
    if (copied_[i].is_set_to(tensor)) return copies_[i];
  copied_.push_back(tensor);
  return copies_.emplace_back(tensor.clone());
}

void HostMemory::Loans::lend(const at::Tensor& tensor, int to, const Tags& tags, int message) {
  Transfers& transfers = memory_.transfers_;
  tensors_.push_back(readable(tensor));
  parts_.push_back(
      transfers.receive_answer(tensor_of(std::make_shared<char>()), to, tags.message(message + 1)));
  const at::Tensor& lent = tensors_.back();
  const Announcement announcement{reinterpret_cast<std::uint64_t>(lent.const_data_ptr()),
                                  static_cast<std::int64_t>(lent.nbytes())};
  parts_.push_back(send_message(transfers, announcement, to, tags.message(message)));
}

void HostMemory::Loans::settle() {
  for (const Part& part : parts_) memory_.transfers_.finish(part, patience_);
  parts_.clear();
  tensors_.clear();
  copied_.clear();
  copies_.clear();
}

HostMemory::Loan::Loan(HostMemory& memory, Patience patience, int from, const Tags& tags,
                       int message)
    : memory_(&memory),
      patience_(patience),
      from_(from),
      answer_tag_(tags.message(message + 1)),
      announced_(std::make_shared<Announcement>()),
      arriving_(memory.transfers_.receive(tensor_of(announced_), from, tags.message(message))) {}

void HostMemory::Loan::open(std::int64_t bytes) {
  Transfers& transfers = memory_->transfers_;
  transfers.finish(arriving_, patience_);
  require(announced_->bytes == bytes, transfers.name_of(from_), " offers ", announced_->bytes,
          " bytes where ", bytes, " were expected");
}

void HostMemory::Loan::read(std::int64_t offset, const at::Tensor& to) const {
  const auto bytes = static_cast<std::int64_t>(to.nbytes());
  auto* const place = static_cast<char*>(to.mutable_data_ptr());
  const PeerMemory& peer = *memory_->peers_[static_cast<std::size_t>(from_)];
  for (std::int64_t at = 0; at < bytes; at += kPieceBytes) {
    memory_->transfers_.check();
    try {
      peer.read(place + at, announced_->address + static_cast<std::uint64_t>(offset + at),
                static_cast<std::size_t>(std::min(kPieceBytes, bytes - at)));
    } catch (const Error& e) {
      throw Error(
          str("nothing came from or went to ", memory_->transfers_.name_of(from_), ": ", e.what()));
    }
  }
}

void HostMemory::Loan::close() {
  Transfers& transfers = memory_->transfers_;
  transfers.finish(send_message(transfers, 'y', from_, answer_tag_), patience_);
}

}  // namespace floe::comm
