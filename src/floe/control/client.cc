// The other ranks' side of the control plane.
#include <poll.h>

#include <algorithm>
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

constexpr auto kWelcomeWait = 10s;  // for rank 0's answer to who this is
constexpr auto kAskAgain = 30s;     // as long as the place of this rank seems to be taken
constexpr auto kBetween = 200ms;    // two attempts
constexpr auto kClientLeaveWait = 2s;
// Rank 0 names those who did not come; who waits for it waits a little longer.
constexpr auto kMembersWait = 5s;

class Client final : public ControlPlane {
 public:
  Client(Member self, Connection connection, std::string server_host)
      : ControlPlane(std::move(self)),
        connection_(std::move(connection)),
        server_host_(std::move(server_host)) {
    connection_.trust();
    thread_ = std::thread([this] { loop(); });
  }
  ~Client() override { Client::leave(); }

  void wait_for_members(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [this] {
      return !members_.empty() || failure_.has_value() || !gone_.empty();
    });
    if (!members_.empty()) return;
    if (failure_) could_not_meet(*failure_);
    require<CommError>(gone_.empty(), gone_);
    throw CommError(
        "rank 0 does not say who is there: its process is stopped, or it waits for "
        "others without an end");
  }

  void leave() noexcept override {
    try {
      std::unique_lock lock(mutex_);
      if (std::exchange(left_, true)) return;
      connection_.send({{"bye", true}});
      wakeup_.wake();
      changed_.wait_for(lock, kClientLeaveWait, [this] { return !connection_.ended().empty(); });
      if (gone_.empty()) gone_ = "this rank has left the others";
      stop_ = true;
      changed_.notify_all();
    } catch (const std::exception& e) {
      log::debug("this rank did not leave well: ", e.what());
    }
    wakeup_.wake();
    if (thread_.joinable()) thread_.join();
  }

 private:
  // The lock is held.
  std::int64_t begin_call(const Request& request, Clock::time_point) override {
    const std::int64_t id = next_id_++;
    Message message{{"id", id}};
    put(message, request);
    pending_.insert(id);
    send(message);
    return id;
  }
  std::optional<Reply> take_reply(std::int64_t id) override {
    const auto found = replies_.find(id);
    if (found == replies_.end()) return std::nullopt;
    Reply reply = std::move(found->second);
    forget(id);
    return reply;
  }
  // Rank 0 may keep a request that waits for keys for ever otherwise.
  void drop_call(std::int64_t id) override {
    if (pending_.contains(id) && !replies_.contains(id) && gone_.empty()) send({{"drop", id}});
    forget(id);
  }
  void forget(std::int64_t id) {
    pending_.erase(id);
    replies_.erase(id);
  }
  void tell_failure(const Failure& failure) override {
    send({{"failed", failure.cause}, {"usage", failure.is_usage}});
  }

  void send(const Message& message) {
    connection_.send(message);
    if (connection_.has_unsent()) wakeup_.wake();
  }

  void handle(const Message& message) {
    if (message.contains("id")) {
      const auto id = message.value("id", std::int64_t{-1});
      if (pending_.contains(id)) replies_[id] = reply_of(message);
    } else if (const auto list = message.find("members"); list != message.end()) {
      members_ = members_of(*list, self_);
    } else if (message.contains("failed")) {
      note_failure({message.value("failed", 0), message.value("cause", std::string()),
                    message.value("gone", false), message.value("host", std::string()),
                    message.value("usage", false)});
    } else if (message.contains("ask")) {
      send({{"state", message.value("ask", std::int64_t{0})}, {"text", state()}});
    } else if (message.contains("bye")) {
      gone_ = "rank 0 has ended";
    }
  }

  void attend() {
    connection_.receive();
    std::string ended = connection_.ended();
    try {
      while (const auto message = connection_.next()) handle(*message);
    } catch (const std::exception& e) {
      ended = str("it said what cannot be understood: ", e.what());
    }
    changed_.notify_all();
    if (ended.empty()) return;
    if (gone_.empty() && !left_) note_failure({0, ended, true, server_host_});
    if (gone_.empty()) gone_ = str("rank 0 is gone: ", ended);
    stop_ = true;
  }

  void loop() {
    std::unique_lock lock(mutex_);
    attend();  // the answer to the hello may have had more behind it
    while (!stop_) {
      const short out = connection_.has_unsent() ? POLLOUT : 0;
      pollfd polled[] = {{connection_.fd(), static_cast<short>(POLLIN | out), 0},
                         {wakeup_.fd(), POLLIN, 0}};
      lock.unlock();
      ::poll(polled, 2, -1);
      wakeup_.clear();
      lock.lock();
      connection_.flush();
      attend();
    }
  }

  Connection connection_;
  std::string server_host_;
  Wakeup wakeup_;
  std::set<std::int64_t> pending_;
  std::map<std::int64_t, Reply> replies_;
  std::int64_t next_id_ = 0;
  bool left_ = false, stop_ = false;
  std::thread thread_;  // last: uses what is above
};

// What rank 0 says to a hello; nothing when it does not answer.
std::optional<Message> answer_to(Connection& connection, const Member& self,
                                 Clock::time_point deadline) {
  connection.send(message_of(self));
  while (Clock::now() < deadline) {
    if (auto message = connection.next()) return message;
    if (!connection.ended().empty()) return std::nullopt;
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    const short out = connection.has_unsent() ? POLLOUT : 0;
    pollfd polled{connection.fd(), static_cast<short>(POLLIN | out), 0};
    ::poll(&polled, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 1)));
    connection.flush();
    connection.receive();
  }
  return std::nullopt;
}

// One attempt: the connection over which rank 0 has welcomed this rank. Throws ConfigError where it
// never will.
class Attempt {
 public:
  std::optional<Connection> connection;
  std::string why;  // not
  std::string server_host;
  bool is_taken = false;  // another process has this rank

  Attempt(Member& self, const ControlPlane::Where& where, Clock::time_point deadline) {
    const auto address = where(why);
    if (!address) return;
    UniqueFd socket = connect_to(*address, deadline, why);
    if (!socket) {
      if (is_loopback(address->host))
        why +=
            "; that is this very host: for several hosts, set MASTER_ADDR to a name of rank 0's "
            "host that all of them know";
      return;
    }
    self.address = local_address(socket);
    Connection fresh(std::move(socket));
    std::optional<Message> answer;
    try {
      answer = answer_to(fresh, self, std::min(deadline, Clock::now() + kWelcomeWait));
    } catch (const DataError&) {
    }
    if (!answer || !(answer->contains("welcome") || answer->contains("refused"))) {
      why =
          str("what listens there is not rank 0 of floe, or hangs; another program may be using "
              "the port: set MASTER_PORT to a free one");
      return;
    }
    if (answer->contains("welcome")) {
      connection.emplace(std::move(fresh));
      server_host = answer->value("host", std::string());
      return;
    }
    why = answer->value("refused", std::string());
    is_taken = answer->value("again", false);
    require<ConfigError>(is_taken, "rank ", self.rank, " of ", self.world_size,
                         " was refused by rank 0 at ", to_string(*address), ": ", why);
  }
};

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::join(Member self, const Where& where,
                                                 milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  allow_files(files_wanted(self.world_size));
  std::optional<Clock::time_point> taken_since;
  for (;;) {
    Attempt attempt(self, where, deadline);
    if (attempt.connection) {
      auto client =
          std::make_unique<Client>(self, std::move(*attempt.connection), attempt.server_host);
      client->wait_for_members(deadline + kMembersWait);
      return client;
    }
    const auto now = Clock::now();
    if (!attempt.is_taken) taken_since.reset();
    if (attempt.is_taken && !taken_since) taken_since = now;
    const bool over = now >= deadline || (taken_since && now - *taken_since > kAskAgain);
    require<CommError>(!over, "rank ", self.rank, " of ", self.world_size, " on ", self.host,
                       " could not join rank 0 within ", static_cast<double>(timeout / 1ms) / 1000,
                       " s: ", attempt.why);
    std::this_thread::sleep_for(kBetween);
  }
}

}  // namespace floe::control
