#include "floe/launch/elastic.h"

#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "floe/core/error.h"
#include "floe/core/host.h"
#include "floe/core/log.h"
#include "floe/launch/coordinator.h"
#include "floe/launch/environment.h"
#include "floe/launch/launcher.h"
#include "floe/version.h"

namespace floe::launch {
namespace {

using Clock = std::chrono::steady_clock;
using control::Message;

constexpr int kMostIdle = 250;  // ms

// "rank 3 of 8 failed first: …", and the exit code that goes with it.
ElasticResult ended(const LaunchResult& result) {
  return {result.exit_code(), describe_failure(result)};
}

// One host: the same ranks again, until they end well or too often.
ElasticResult launch_here(const ElasticOptions& options) {
  LaunchOptions ranks = options.ranks;
  const std::string job = new_job_id();
  for (int restarts = 0;; ++restarts) {
    ranks.environment = options.ranks.environment;
    ranks.environment.emplace_back(kLaunchVariable, job);
    ranks.environment.emplace_back(kRestartsVariable, str(restarts));
    const LaunchResult result = launch(ranks);
    const int code = result.exit_code();
    const bool again = code != 0 && !result.stop_signal &&
                       code != static_cast<int>(Exit::stopped) &&
                       code != static_cast<int>(Exit::usage) && restarts < options.max_restarts;
    if (!again) return ended(result);
    log::warn(describe_failure(result), "; starting again (", restarts + 1, " of ",
              options.max_restarts, ")");
  }
}

// This host's part of a job on several.
class Agent final : public Companion {
 public:
  explicit Agent(const ElasticOptions& options)
      : options_(options), rendezvous_(*options.rendezvous), signals_(options.ranks.last) {
    own_.version = kVersion;
    own_.host = host_name();
    own_.command = join(options.ranks.command, " ");
    own_.num_ranks = options.ranks.num_ranks;
  }

  ElasticResult run() {
    if (control::is_this_host(rendezvous_.host)) coordinate();
    if (!connect()) return {static_cast<int>(Exit::stopped), "stopped before the hosts have met"};
    while (!finished_) {
      if (start_)
        run_round(*std::exchange(start_, std::nullopt));
      else
        wait_idle();
    }
    send_rest();
    return *finished_;
  }

  void add_polled(std::vector<pollfd>& polled) const override {
    if (coordinator_) coordinator_->add_polled(polled);
    if (connection_) polled.push_back({connection_->fd(), POLLIN, 0});
  }

  std::string work() override {
    if (coordinator_) coordinator_->work();
    if (!connection_) return "";
    connection_->flush();
    connection_->receive();
    while (const auto message = connection_->next()) take(*message);
    if (!connection_->ended().empty() && !finished_) {
      const std::string why = str("the launcher on ", rendezvous_.host,
                                  ", where the hosts meet, is gone: ", connection_->ended());
      finished_ = ElasticResult{1, str(why, "; start the same command on all hosts again")};
      stop_why_ = why;
    }
    return stop_why_;
  }

 private:
  // The first launcher on the host of the rendezvous is the coordinator.
  void coordinate() {
    try {
      UniqueFd listening = control::listen_at(rendezvous_.port,
                                              control::is_loopback(rendezvous_.host), Clock::now());
      own_.token = new_job_id();
      coordinator_ = std::make_unique<Coordinator>(options_, std::move(listening), own_);
      log::info("hosts meet here, at ", control::to_string(rendezvous_), "; waiting for ",
                options_.min_hosts == options_.max_hosts
                    ? str(options_.max_hosts)
                    : str(options_.min_hosts, " to ", options_.max_hosts),
                " of them");
    } catch (const CommError&) {
      // Another launcher of this host was first, or another program has the port: the answer tells.
    }
  }

  // False when a signal asked for an end before.
  bool connect() {
    const auto end = Clock::now() + options_.host_wait;
    std::string why;
    for (;;) {
      constexpr std::chrono::seconds kAttempt{5};
      UniqueFd socket = control::connect_to(rendezvous_, Clock::now() + kAttempt, why);
      if (socket) {
        connection_.emplace(std::move(socket));
        connection_->trust();
        connection_->send({{"hello",
                            {{"version", own_.version},
                             {"host", own_.host},
                             {"command", own_.command},
                             {"ranks", own_.num_ranks},
                             {"token", own_.token}}}});
        return true;
      }
      require<CommError>(Clock::now() < end, "no launcher answers at ",
                         control::to_string(rendezvous_), " (", why,
                         "); start the same command there, or give another --rdzv");
      if (stop_asked()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }

  bool stop_asked() {
    bool asked = false;
    while (const int number = signals_.next())
      asked = asked || number == SIGINT || number == SIGTERM || number == SIGHUP;
    return asked;
  }

  void take(const Message& message) {
    if (message.contains("start")) {
      start_ = message.at("start");
      stop_why_.clear();
    } else if (message.contains("stop")) {
      if (message.at("stop").at("round").get<int>() == round_)
        stop_why_ = message.at("stop").at("why").get<std::string>();
    } else if (message.contains("finish")) {
      const Message& finish = message.at("finish");
      finished_ =
          ElasticResult{finish.at("exit_code").get<int>(), finish.at("why").get<std::string>()};
    } else if (message.contains("refused")) {
      throw ConfigError(str("the launcher at ", control::to_string(rendezvous_),
                            " does not take this one: ", message.at("refused").get<std::string>()));
    }
  }

  void run_round(const Message& start) {
    LaunchOptions ranks = options_.ranks;
    round_ = start.at("round").get<int>();
    ranks.place = LaunchOptions::Place{start.at("first_rank").get<int>(),
                                       start.at("world_size").get<int>(),
                                       rendezvous_.host,
                                       start.at("port").get<int>(),
                                       start.at("job").get<std::string>(),
                                       start.at("restarts").get<int>()};
    const LaunchResult result = Launcher(ranks, signals_, this).run();
    if (!connection_->ended().empty()) return;
    const ElasticResult end = ended(result);
    connection_->send({{"ended",
                        {{"round", round_},
                         {"exit_code", end.exit_code},
                         {"why", end.why},
                         {"asked", result.stop_signal.has_value()}}}});
  }

  // Between rounds.
  void wait_idle() {
    std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}};
    add_polled(polled);
    poll(polled.data(), polled.size(), kMostIdle);
    if (stop_asked()) {
      const int code = static_cast<int>(Exit::stopped);
      const std::string why = "stopped while no rank was running; the same command goes on";
      if (coordinator_) coordinator_->finish(code, why);
      finished_ = ElasticResult{code, why};
      return;
    }
    work();
  }

  // The others hear how it ended before this process does.
  void send_rest() {
    if (!coordinator_) return;
    const auto end = Clock::now() + std::chrono::seconds(5);
    while (!coordinator_->all_sent() && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      coordinator_->work();
    }
  }

  const ElasticOptions& options_;
  const control::Address rendezvous_;
  HostHello own_;
  SignalReader signals_;
  std::unique_ptr<Coordinator> coordinator_;  // of the host where they meet
  std::optional<control::Connection> connection_;
  std::optional<Message> start_;  // a round that is to begin
  int round_ = 0;
  std::string stop_why_;  // the ranks of the round are to end
  std::optional<ElasticResult> finished_;
};

}  // namespace

ElasticResult launch_elastic(const ElasticOptions& options) {
  require<ConfigError>(options.rendezvous || options.max_hosts == 1,
                       "several hosts need a place to meet: --rdzv HOST:PORT, the same for all");
  return options.rendezvous ? Agent(options).run() : launch_here(options);
}

}  // namespace floe::launch
