#include "floe/comm/gloo/transfers.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "floe/comm/group.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"

namespace floe::comm {

using Clock = std::chrono::steady_clock;

// Who drops the last reference frees its tensor, whoever watches it (a weak intrusive pointer would
// keep that).
struct Transfer {
  c10::intrusive_ptr<c10d::Work> work;
  int peer = 0;
  bool answers = false;
  Clock::time_point begin = Clock::now();
};

namespace {

// Note [Sends to a rank that is gone]
// Gloo wakes what waits on a connection that breaks, except for a send whose data was already being
// written (its queue of writes is passed over): such a send would wait until the timeout. So a
// transfer that takes long has its connection tried: on a broken one Gloo refuses to begin a
// receive. The receive that is begun on one that works has a tag of its own and never ends.
constexpr std::chrono::seconds kTryAfter{1};
constexpr std::uint32_t kTryTag = 0x7fff;  // no transfer has it, see take_tags

// Longer than any process lives; Gloo takes none at all for its own timeout.
constexpr std::chrono::hours kForever{24 * 365};

}  // namespace

Transfers::Transfers(Gloo gloo, std::vector<std::string> names, std::chrono::milliseconds timeout)
    : gloo_(std::move(gloo)),
      names_(std::move(names)),
      timeout_(timeout),
      slow_connections_(kTryAfter, [this] { return try_slow_connections(); }) {}

Tags Transfers::take_tags(std::int64_t bytes, int count) {
  const auto size = static_cast<std::uint64_t>(bytes);
  const std::int64_t taken = round_up(count, Tags::kMessages);
  return {next_tag_.fetch_add(static_cast<std::uint32_t>(taken)),
          static_cast<std::uint32_t>(mix64(size) % kTryTag),
          static_cast<std::uint32_t>(mix64(~size) % kTryTag)};
}

Part Transfers::send(const at::Tensor& tensor, int to, int tag) {
  std::vector<at::Tensor> tensors{tensor};
  std::lock_guard lock(issue_);
  return tracked(to, [&] { return gloo_->send(tensors, to, tag); });
}

Part Transfers::receive(const at::Tensor& tensor, int from, int tag) {
  std::vector<at::Tensor> tensors{tensor};
  std::lock_guard lock(issue_);
  return tracked(from, [&] { return gloo_->recv(tensors, from, tag); });
}

// Issues a send or receive that `give_up` can reach; the lock is held.
template <class F>
Part Transfers::tracked(int peer, F&& issue) {
  require(given_up_.empty(), given_up_);
  const auto part = std::make_shared<Transfer>(Transfer{issue(), peer});
  if (under_way_.size() >= 256)
    std::erase_if(under_way_, [](const auto& other) { return other.expired(); });
  under_way_.emplace_back(part);
  return part;
}

Part Transfers::receive_answer(const at::Tensor& tensor, int from, int tag) {
  const Part part = receive(tensor, from, tag);
  part->answers = true;
  return part;
}

void Transfers::finish(const Part& part, Patience patience) {
  const auto began = Clock::now();
  if (patience == Patience::none) waits_for_ = part->peer;
  try {
    if (part->work->wait(patience == Patience::none ? kForever : timeout_)) return;
  } catch (const std::exception& e) {
    // Who sends hears of a connection that breaks in the same words, whatever it waits for.
    const bool in_time = patience == Patience::none || Clock::now() - began < timeout_;
    if (part->answers && in_time)
      throw Error(str("the connection to ", name_of(part->peer), " is lost: ", cause_of(e)));
    throw Error(str("nothing came from or went to ", name_of(part->peer), ": ", cause_of(e)));
  }
  std::lock_guard lock(issue_);
  throw Error(given_up_);
}

void Transfers::give_up(const std::string& reason) {
  std::lock_guard lock(issue_);
  give_up_locked(reason);
}

void Transfers::give_up_locked(const std::string& reason) {
  if (given_up_.empty()) given_up_ = reason;
  for (const auto& part : under_way_)
    if (const Part alive = part.lock()) alive->work->abort();
}

void Transfers::check() {
  std::lock_guard lock(issue_);
  require(given_up_.empty(), given_up_);
}

void Transfers::time_out() {
  give_up(str("nothing came from or went to ", name_of(waits_for_), ": Timed out waiting ",
              timeout_.count(), "ms for recv operation to complete"));
}

// See Note [Sends to a rank that is gone]. Returns true when there is nothing left to try.
bool Transfers::try_slow_connections() {
  std::lock_guard lock(issue_);
  if (!given_up_.empty()) return true;
  std::set<int> tried;
  for (const auto& watched : under_way_) {
    const Part part = watched.lock();
    if (!part || Clock::now() - part->begin < kTryAfter) continue;
    if (!tried.insert(part->peer).second || is_connected(part->peer)) continue;
    give_up_locked(str("the connection to ", name_of(part->peer), " is lost"));
    return true;
  }
  return false;
}

bool Transfers::is_connected(int peer) {
  try {
    std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
    gloo_->recv(nothing, peer, Tags{0, kTryTag, 0}[0]);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace floe::comm
