// Rank 0's side of the control plane.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "floe/control/connection.h"
#include "floe/control/control_plane.h"
#include "floe/control/hello.h"
#include "floe/core/error.h"
#include "floe/core/log.h"

namespace floe::control {
namespace {

using namespace std::chrono_literals;

constexpr auto kPoll = 200ms;          // how late a time limit may be noticed
constexpr auto kHelloWait = 10s;       // for a stranger to say who it is
constexpr auto kTellMissing = 30s;     // between two lines about ranks that have not come
constexpr auto kServerLeaveWait = 5s;  // for the others to leave
constexpr auto kFailedLeaveWait = 2s;  // the same after a failure, which they have been told
constexpr int kSelf = -1;              // in place of a connection: rank 0 itself

// A connection to every rank, and what the rest of rank 0's process has open.
std::int64_t files_needed(int world_size) { return world_size + std::int64_t{64}; }

// "1, 4 to 7"
std::string ranges(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (end - i >= 3)
      parts.push_back(str(numbers[i], " to ", numbers[end - 1]));
    else
      for (std::size_t k = i; k < end; ++k) parts.push_back(str(numbers[k]));
    i = end;
  }
  return str(numbers.size() == 1 ? "rank " : "ranks ", join(parts, ", "));
}

class Server final : public ControlPlane {
 public:
  Server(const Member& self, UniqueFd listening)
      : ControlPlane(self), listening_(std::move(listening)) {
    present_[self_.rank] = self_;
    complete_if_all_are_there();
    if (listening_) thread_ = std::thread([this] { loop(); });
  }
  ~Server() override { Server::leave(); }

  // Collective: until all ranks are there.
  void wait_for_members(milliseconds timeout) {
    const auto begin = Clock::now();
    const auto is_over = [this] { return !members_.empty() || failure_.has_value(); };
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto left = timeout - (Clock::now() - begin);
      changed_.wait_for(lock, std::min<Clock::duration>(left, kTellMissing), is_over);
      if (!members_.empty()) return;
      if (failure_ && wrong_) throw ConfigError("the ranks could not meet: " + failure_->cause);
      if (failure_) could_not_meet(*failure_);
      if (Clock::now() - begin >= timeout) break;
      log::warn("waiting for ", missing(), ", since ", (Clock::now() - begin) / 1s, " s");
    }
    const std::string why =
        str(missing(), " did not come within ", static_cast<double>(timeout / 1ms) / 1000,
            " s (dist.timeout_s); look why they did not start, or could not reach ", self_.host,
            " at port ", port_of(listening_));
    fail({self_.rank, why});
    throw CommError(str("rank 0 of ", self_.world_size, " is not joined by all: ", why));
  }

  void leave() noexcept override {
    try {
      std::unique_lock lock(mutex_);
      if (std::exchange(left_, true)) return;
      const auto limit = failure_ ? kFailedLeaveWait : kServerLeaveWait;
      changed_.wait_for(lock, limit, [this] { return num_connected() == 0; });
      for (auto& [id, peer] : peers_) peer.connection.send({{"bye", true}});
      const auto end = Clock::now() + 1s;
      changed_.wait_until(lock, end, [this] { return !has_unsent(); });
      gone_ = "this rank has left the others";
      log::debug("rank 0 was asked and told ", num_requests_, " times over the control plane");
      stop_ = true;
      changed_.notify_all();
    } catch (const std::exception& e) {
      log::debug("rank 0 did not leave well: ", e.what());
    }
    wakeup_.wake();
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Peer {
    explicit Peer(UniqueFd socket) : connection(std::move(socket)) {}

    Connection connection;
    Clock::time_point since = Clock::now();
    int rank = -1;         // unknown yet
    bool leaving = false;  // it has said so, or was refused
  };
  struct Parked {
    int peer;
    std::int64_t id;
    Request request;
  };
  // A question to all ranks, on behalf of one.
  struct Poll {
    int peer;
    std::int64_t id;
    Clock::time_point deadline;
    std::vector<std::string> texts;
    std::size_t answers = 0;
    int only = -1;  // the rank that is asked; else all are

    void add(int rank, std::string text) {
      if (only >= 0 && rank != only) return;
      texts[only >= 0 ? 0 : static_cast<std::size_t>(rank)] = std::move(text);
      ++answers;
    }
  };

  // ---- calls; the lock is held ----

  std::int64_t begin_call(const Request& request, Clock::time_point) override {
    const std::int64_t id = next_id_++;
    ++num_requests_;
    serve(kSelf, id, request);
    return id;
  }
  std::optional<Reply> take_reply(std::int64_t id) override {
    const auto found = own_replies_.find(id);
    if (found == own_replies_.end()) return std::nullopt;
    Reply reply = std::move(found->second);
    own_replies_.erase(found);
    return reply;
  }
  void drop_call(std::int64_t id) override {
    own_replies_.erase(id);
    forget_call(kSelf, id);
  }
  void tell_failure(const Failure& failure) override { fail(failure); }

  void serve(int peer, std::int64_t id, const Request& request) {
    if (request.op == Request::Op::states) return ask_all(peer, id, request);
    if (const std::string* missing = table_.first_missing(request)) {
      parked_.emplace(*missing, Parked{peer, id, request});
      return;
    }
    if (const auto reply = table_.apply(request)) answer(peer, id, *reply);
    const bool writes = request.op != Request::Op::get && request.op != Request::Op::wait &&
                        request.op != Request::Op::look;
    if (writes)
      for (const std::string& key : request.keys) serve_parked(key);
  }

  // Those who waited for this key go on, or wait for their next one.
  void serve_parked(const std::string& key) {
    std::vector<Parked> ready;
    const auto [first, last] = parked_.equal_range(key);
    for (auto one = first; one != last; ++one) ready.push_back(std::move(one->second));
    parked_.erase(first, last);
    for (const Parked& one : ready) serve(one.peer, one.id, one.request);
  }

  void answer(int peer, std::int64_t id, const Reply& reply) {
    if (peer == kSelf) {
      own_replies_[id] = reply;
      changed_.notify_all();
      return;
    }
    const auto found = peers_.find(peer);
    if (found == peers_.end()) return;
    Message message{{"id", id}};
    put(message, reply);
    found->second.connection.send(message);
    if (found->second.connection.has_unsent()) wakeup_.wake();
  }

  void ask_all(int peer, std::int64_t id, const Request& request) {
    Poll poll{peer, id,
              Clock::now() + milliseconds(std::clamp<std::int64_t>(request.number, 0, 60'000))};
    if (!request.keys.empty()) poll.only = rank_in(request.keys.front());
    poll.texts.resize(poll.only >= 0 ? 1 : static_cast<std::size_t>(self_.world_size));
    poll.add(0, state());
    if (request.number <= 0)
      return answer(peer, id, {poll.texts, 0});  // only whether this one does
    const std::string frame = frame_of({{"ask", next_poll_}});
    for (auto& [number, other] : peers_)
      if (other.rank > 0 && (poll.only < 0 || other.rank == poll.only))
        other.connection.send_frame(frame);
    for (const int rank : gone_well_) poll.add(rank, "it has ended");
    finish(polls_.emplace(next_poll_++, std::move(poll)).first);
  }
  // Throws DataError for a text that is no rank.
  int rank_in(const std::string& text) const {
    int rank = -1;
    std::from_chars(text.data(), text.data() + text.size(), rank);
    require<DataError>(rank >= 0 && rank < self_.world_size, "there is no rank '", text, "'");
    return rank;
  }
  using Polls = std::map<std::int64_t, Poll>;
  // If it is over; returns the next one.
  Polls::iterator finish(Polls::iterator one) {
    const Poll& poll = one->second;
    const bool over = poll.answers >= poll.texts.size() || Clock::now() >= poll.deadline;
    if (!over) return std::next(one);
    answer(poll.peer, poll.id, {poll.texts, 0});
    return polls_.erase(one);
  }
  void finish_polls() {
    for (auto one = polls_.begin(); one != polls_.end();) one = finish(one);
  }

  // ---- the other ranks; the lock is held ----

  void fail(Failure failure) {
    if (failure_) return;
    if (const auto found = present_.find(failure.rank); found != present_.end())
      failure.host = found->second.host;
    note_failure(failure);
    send_to_all({{"failed", failure.rank},
                 {"cause", failure.cause},
                 {"gone", failure.is_gone},
                 {"host", failure.host},
                 {"usage", failure.is_usage}});
    wakeup_.wake();
  }

  // Made once for all.
  void send_to_all(const Message& message) {
    const std::string frame = frame_of(message);
    for (auto& [id, peer] : peers_)
      if (peer.rank > 0) peer.connection.send_frame(frame);
  }

  std::size_t num_connected() const {
    return static_cast<std::size_t>(std::count_if(
        peers_.begin(), peers_.end(), [](const auto& peer) { return peer.second.rank > 0; }));
  }
  bool has_unsent() const {
    return std::any_of(peers_.begin(), peers_.end(),
                       [](const auto& peer) { return peer.second.connection.has_unsent(); });
  }

  std::string missing() const {
    std::vector<int> numbers, here;
    for (int rank = 0; rank < self_.world_size; ++rank)
      (present_.contains(rank) ? here : numbers).push_back(rank);
    return str(ranges(numbers), " (", ranges(here), here.size() == 1 ? " is" : " are", " here)");
  }

  void complete_if_all_are_there() {
    if (std::cmp_less(present_.size(), self_.world_size) || !members_.empty()) return;
    std::vector<Member> all;
    for (const auto& [rank, member] : present_) all.push_back(member);
    // Ranks that came over the loopback device are on this host, which others reach by its address.
    for (Member& member : all)
      if ((member.address.empty() || is_loopback(member.address)) && !outer_address_.empty())
        member.address = outer_address_;
    members_ = std::move(all);
    send_to_all({{"members", message_of(members_)}});
    changed_.notify_all();
  }

  Verdict judge_hello(const Member& other) const {
    Verdict verdict = judge(self_, other);
    if (verdict.kind != Verdict::Kind::welcome) return verdict;
    if (failure_ || left_) return {Verdict::Kind::later, "the job that listens there is ending"};
    if (const auto taken = present_.find(other.rank); taken != present_.end())
      return {Verdict::Kind::later,
              str("rank ", other.rank, " is there already: process ", taken->second.pid, " on ",
                  taken->second.host, "; every process needs a rank of its own")};
    return verdict;
  }

  void admit(Peer& peer, const Member& other) {
    const Verdict verdict = judge_hello(other);
    if (verdict.kind == Verdict::Kind::welcome) {
      peer.rank = other.rank;
      peer.connection.trust();
      present_[other.rank] = other;
      if (const std::string own = local_address(peer.connection.socket()); !is_loopback(own))
        outer_address_ = own;
      peer.connection.send({{"welcome", true}, {"host", self_.host}});
      return complete_if_all_are_there();
    }
    if (verdict.kind != Verdict::Kind::later)
      log::warn("a process on ", other.host, " (", peer_address(peer.connection.socket()),
                ") was refused: ", verdict.why);
    peer.connection.send({{"refused", verdict.why},
                          {"again", verdict.kind == Verdict::Kind::later},
                          {"wrong", verdict.kind == Verdict::Kind::wrong}});
    peer.leaving = true;
    peer.connection.half_close();
    if (verdict.kind == Verdict::Kind::wrong) {
      wrong_ = true;
      fail({.rank = self_.rank, .cause = verdict.why, .is_usage = true});
    }
  }

  void handle(int id, Peer& peer, const Message& message) {
    if (peer.rank < 0) {
      if (!peer.leaving) admit(peer, member_of(message));
      return;
    }
    if (message.contains("op")) {
      serve(id, message.value("id", std::int64_t{0}), request_of(message));
    } else if (message.contains("failed")) {
      fail({.rank = peer.rank,
            .cause = message.value("failed", std::string("no cause")),
            .is_usage = message.value("usage", false)});
    } else if (message.contains("state")) {
      const auto poll = polls_.find(message.value("state", std::int64_t{-1}));
      if (poll == polls_.end()) return;
      poll->second.add(peer.rank, message.value("text", std::string()));
      finish(poll);
    } else if (message.contains("drop")) {
      forget_call(id, message.value("drop", std::int64_t{-1}));
    } else if (message.contains("bye")) {
      peer.leaving = true;
      gone_well_.insert(peer.rank);
      peer.connection.half_close();
    }
  }

  // Reads what has come from a peer; false when it is of no use any more.
  bool attend(int id, Peer& peer) {
    peer.connection.receive();
    try {
      while (const auto message = peer.connection.next()) {
        ++num_requests_;
        handle(id, peer, *message);
      }
    } catch (const std::exception& e) {
      if (peer.rank >= 0) {
        fail({peer.rank, str("it said what cannot be understood: ", e.what())});
      } else {
        log::warn("a stranger at ", peer_address(peer.connection.socket()),
                  " was sent away from port ", port_of(listening_), ": ", e.what());
      }
      return false;
    }
    if (peer.rank < 0 && Clock::now() - peer.since > kHelloWait) {
      if (!peer.leaving)
        log::warn("a stranger at ", peer_address(peer.connection.socket()),
                  " was sent away from port ", port_of(listening_), ": it did not say who it is");
      return false;
    }
    if (peer.connection.ended().empty()) return true;
    if (peer.rank >= 0 && !peer.leaving) {
      fail({peer.rank, peer.connection.ended(), true});
      if (members_.empty()) present_.erase(peer.rank);
    }
    return false;
  }

  // Of a thousand peers few have something to say at a time: only those are read.
  void loop() {
    constexpr std::size_t kBefore = 2;  // in front of the peers
    std::vector<pollfd> polled;
    std::vector<int> ids;
    std::unique_lock lock(mutex_);
    while (!stop_) {
      polled.assign({{can_accept_ ? listening_.get() : -1, POLLIN, 0}, {wakeup_.fd(), POLLIN, 0}});
      ids.clear();
      for (const auto& [id, peer] : peers_) {
        const short out = peer.connection.has_unsent() ? POLLOUT : 0;
        polled.push_back({peer.connection.fd(), static_cast<short>(POLLIN | out), 0});
        ids.push_back(id);
      }
      lock.unlock();
      ::poll(polled.data(), polled.size(), static_cast<int>(kPoll / 1ms));
      wakeup_.clear();
      lock.lock();
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto one = peers_.find(ids[i]);
        Peer& peer = one->second;
        // A stranger may say nothing for too long.
        if (polled[kBefore + i].revents == 0 && peer.rank >= 0) continue;
        peer.connection.flush();
        if (attend(one->first, peer)) continue;
        forget_calls(one->first);
        peers_.erase(one);
        can_accept_ = true;
      }
      if (polled[0].revents != 0) accept_all();
      finish_polls();
      changed_.notify_all();  // for leave()
    }
  }

  void accept_all() {
    while (UniqueFd fresh = accept_from(listening_)) peers_.emplace(next_peer_++, std::move(fresh));
    if (errno != EMFILE && errno != ENFILE) return;
    const std::string why = str(
        "rank 0 has ", peers_.size(),
        " connections and cannot take another one: ", std::strerror(errno),
        "; every rank needs one, so raise the limit of open files there (ulimit -n) to at least ",
        files_needed(self_.world_size));
    can_accept_ = false;  // until one has ended: there would be no end of trying
    if (members_.empty()) return fail({self_.rank, why});
    log::warn(why);
  }

  void forget_call(int peer, std::int64_t id) {
    std::erase_if(parked_,
                  [&](const auto& one) { return one.second.peer == peer && one.second.id == id; });
  }

  void forget_calls(int peer) {
    std::erase_if(parked_, [&](const auto& one) { return one.second.peer == peer; });
    std::erase_if(polls_, [&](const auto& one) { return one.second.peer == peer; });
  }

  UniqueFd listening_;
  Wakeup wakeup_;
  Table table_;
  std::map<int, Peer> peers_;
  std::map<int, Member> present_;
  std::set<int> gone_well_;
  std::string outer_address_;  // by which other hosts have reached this one; empty: none has
  std::multimap<std::string, Parked> parked_;  // by the key they wait for
  Polls polls_;
  std::map<std::int64_t, Reply> own_replies_;
  std::int64_t next_id_ = 0, next_poll_ = 0;
  int next_peer_ = 0;
  bool left_ = false, stop_ = false;
  bool can_accept_ = true;  // there are descriptors for it
  bool wrong_ = false;      // a rank of this job was not started alike
  std::thread thread_;      // last: uses what is above
};

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::alone(const Member& self) {
  Member one = self;
  one.rank = 0;
  one.world_size = 1;
  return std::make_unique<Server>(one, UniqueFd());
}

std::unique_ptr<ControlPlane> ControlPlane::serve(const Member& self, UniqueFd listening,
                                                  milliseconds timeout) {
  const std::int64_t allowed = allow_files(files_wanted(self.world_size));
  require<ConfigError>(allowed >= files_needed(self.world_size), "rank 0 of ", self.world_size,
                       " may have ", allowed, " files open, and needs ",
                       files_needed(self.world_size),
                       ", for a connection to every rank and its own; raise the hard limit on ",
                       self.host, " (ulimit -Hn, LimitNOFILE of the scheduler's service)");
  auto server = std::make_unique<Server>(self, std::move(listening));
  server->wait_for_members(timeout);
  return server;
}

}  // namespace floe::control
