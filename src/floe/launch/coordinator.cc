#include "floe/launch/coordinator.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/launch/environment.h"

namespace floe::launch {
namespace {

using control::Message;

// Beyond what its ranks may take to end: a launcher that is not done by then hangs.
constexpr std::chrono::seconds kMoreThanEnough{30};

double seconds_of(std::chrono::milliseconds time) { return double(time.count()) / 1000; }

}  // namespace

Coordinator::Coordinator(const ElasticOptions& options, UniqueFd listening, HostHello own)
    : options_(options),
      listening_(std::move(listening)),
      own_(std::move(own)),
      job_(new_job_id()) {}

void Coordinator::add_polled(std::vector<pollfd>& polled) const {
  polled.push_back({listening_.get(), POLLIN, 0});
  for (const Host& host : hosts_)
    polled.push_back({host.connection.fd(),
                      static_cast<short>(host.connection.has_unsent() ? POLLIN | POLLOUT : POLLIN),
                      0});
}

void Coordinator::work() {
  accept_new();
  for (Host& host : hosts_) read_from(host);
  drop_lost();
  if (phase_ == Phase::gathering) gather();
  if (phase_ == Phase::running) watch_round();
}

bool Coordinator::all_sent() const {
  return std::none_of(hosts_.begin(), hosts_.end(),
                      [](const Host& host) { return host.connection.has_unsent(); });
}

void Coordinator::accept_new() {
  while (UniqueFd socket = control::accept_from(listening_)) hosts_.emplace_back(std::move(socket));
}

void Coordinator::read_from(Host& host) {
  host.connection.flush();
  host.connection.receive();
  try {
    while (const auto message = host.connection.next()) take(host, *message);
  } catch (const DataError&) {
    host.broken = true;
  } catch (const nlohmann::json::exception&) {
    host.broken = true;
  }
}

void Coordinator::take(Host& host, const Message& message) {
  if (!host.known) return welcome(host, message);
  if (message.contains("ended")) {
    const Message& ended = message.at("ended");
    if (ended.at("round").get<int>() != rounds_) return;
    host.ended = true;
    host.exit_code = ended.at("exit_code").get<int>();
    host.cause = ended.at("why").get<std::string>();
    if (host.exit_code != 0)
      note_failure(host.exit_code, str("on ", host.hello.host, " ", host.cause),
                   ended.at("asked").get<bool>());
  }
}

void Coordinator::welcome(Host& host, const Message& message) {
  const Message& hello = message.at("hello");
  host.hello = {hello.at("version").get<std::string>(), hello.at("host").get<std::string>(),
                hello.at("command").get<std::string>(), hello.at("ranks").get<int>(),
                hello.at("token").get<std::string>()};
  std::string why;
  if (host.hello.version != own_.version)
    why = str(host.hello.host, " has floe ", host.hello.version, " and ", own_.host, " has ",
              own_.version, "; install the same on all hosts");
  else if (host.hello.command != own_.command)
    why = str("the launcher of ", host.hello.host, " was started with '", host.hello.command,
              "' and that of ", own_.host, " with '", own_.command,
              "'; give the same command on all hosts");
  else if (phase_ == Phase::finished)
    why = "the job has ended";
  if (!why.empty()) {
    log::warn("a launcher is sent away: ", why);
    tell(host, {{"refused", why}});
    host.connection.half_close();
    return;
  }
  host.known = true;
  host.connection.trust();
  host.is_own = !own_.token.empty() && host.hello.token == own_.token;
  last_came_ = Clock::now();
  if (phase_ == Phase::running)
    log::info(host.hello.host, " has come: it waits until the job is started again");
}

void Coordinator::drop_lost() {
  for (auto host = hosts_.begin(); host != hosts_.end();) {
    if (host->connection.ended().empty() && !host->broken) {
      ++host;
      continue;
    }
    if (!host->known && host->broken)
      log::warn("something that is no launcher has connected to ",
                control::to_string(*options_.rendezvous), "; it is sent away");
    if (host->known && phase_ != Phase::finished) {
      const std::string cause = str(
          "the launcher on ", host->hello.host,
          " is gone: ", host->broken ? "it says what no launcher says" : host->connection.ended());
      if (host->in_round && phase_ == Phase::running)
        note_failure(1, cause);
      else
        log::warn(cause);
    }
    host = hosts_.erase(host);
  }
}

std::vector<Coordinator::Host*> Coordinator::ready_hosts() {
  std::vector<Host*> ready;
  for (Host& host : hosts_)
    if (host.known) ready.push_back(&host);
  // Rank 0 is on the coordinator's host, which all others can reach.
  std::stable_partition(ready.begin(), ready.end(), [](const Host* host) { return host->is_own; });
  return ready;
}

std::string Coordinator::names_of(const std::vector<Host*>& hosts) const {
  std::vector<std::string> names;
  for (const Host* host : hosts) names.push_back(host->hello.host);
  return join(names, ", ");
}

void Coordinator::gather() {
  std::vector<Host*> ready = ready_hosts();
  const auto now = Clock::now();
  const auto count = static_cast<int>(ready.size());
  const bool enough = count >= options_.min_hosts && !ready.empty() && ready.front()->is_own;
  if (enough && (count >= options_.max_hosts || now >= last_came_ + options_.last_call)) {
    ready.resize(static_cast<std::size_t>(std::min(count, options_.max_hosts)));
    return begin_round(ready);
  }
  if (!enough && now >= gathering_since_ + options_.host_wait)
    finish(1, str("only ", counted(count, "host"), " of at least ", options_.min_hosts,
                  " came within ", seconds_of(options_.host_wait), " s: ", names_of(ready),
                  "; start the same command on the others"));
}

void Coordinator::begin_round(const std::vector<Host*>& hosts) {
  ++rounds_;
  phase_ = Phase::running;
  failure_.reset();
  int world_size = 0;
  for (const Host* host : hosts) world_size += host->hello.num_ranks;
  log::info("starting ", counted(world_size, "rank"), " on ", names_of(hosts));
  const int port = free_port();
  int first_rank = 0;
  for (Host* host : hosts) {
    host->in_round = true;
    host->ended = false;
    tell(*host, {{"start",
                  {{"round", rounds_},
                   {"first_rank", first_rank},
                   {"world_size", world_size},
                   {"port", port},
                   {"job", str(job_, ".", rounds_)},
                   {"restarts", restarts_}}}});
    first_rank += host->hello.num_ranks;
  }
}

void Coordinator::note_failure(int exit_code, const std::string& cause, bool final) {
  if (failure_) {
    failure_->final = failure_->final || final;
    return;
  }
  failure_ = RoundFailure{exit_code, cause, final, Clock::now()};
  for (Host& host : hosts_)
    if (host.in_round && !host.ended) tell(host, {{"stop", {{"round", rounds_}, {"why", cause}}}});
}

void Coordinator::watch_round() {
  const bool over = std::all_of(hosts_.begin(), hosts_.end(),
                                [](const Host& host) { return !host.in_round || host.ended; });
  if (over) return end_round();
  if (!failure_ || Clock::now() < failure_->at + options_.ranks.grace + options_.ranks.kill_after +
                                      kMoreThanEnough)
    return;
  for (auto host = hosts_.begin(); host != hosts_.end();) {
    if (host->in_round && !host->ended && !host->is_own) {
      log::warn("the launcher on ", host->hello.host, " does not end its ranks: it is left behind");
      host = hosts_.erase(host);
    } else {
      ++host;
    }
  }
}

void Coordinator::end_round() {
  for (Host& host : hosts_) host.in_round = false;
  if (!failure_) return finish(0, "");
  const int code = failure_->exit_code;
  const std::string cause = failure_->cause;
  const auto ended_with = [&](Exit exit) { return code == static_cast<int>(exit); };
  // A stop that was asked for, and what would be refused again, are no reason for another round.
  if (failure_->final || ended_with(Exit::stopped) || ended_with(Exit::usage))
    return finish(code, cause);
  if (restarts_ >= options_.max_restarts)
    return finish(code, options_.max_restarts == 0
                            ? cause
                            : str(cause, "; it has been started again ", counted(restarts_, "time"),
                                  " (--max-restarts)"));
  ++restarts_;
  log::warn(cause, "; starting again (", restarts_, " of ", options_.max_restarts, ")");
  phase_ = Phase::gathering;
  gathering_since_ = last_came_ = Clock::now();
}

void Coordinator::finish(int exit_code, const std::string& why) {
  if (phase_ == Phase::finished) return;
  phase_ = Phase::finished;
  for (Host& host : hosts_)
    if (host.known) tell(host, {{"finish", {{"exit_code", exit_code}, {"why", why}}}});
}

}  // namespace floe::launch
