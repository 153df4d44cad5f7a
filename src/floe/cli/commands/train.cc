#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>

#include "floe/cli/auto_strategy.h"
#include "floe/cli/command.h"
#include "floe/cli/options.h"
#include "floe/comm/watch.h"
#include "floe/comm/world.h"
#include "floe/core/log.h"
#include "floe/core/stacks.h"
#include "floe/launch/launch.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "floe/train/reporting/status_file.h"
#include "floe/train/run_signals.h"
#include "floe/train/setup/parallelize.h"
#include "floe/train/trainer.h"

namespace floe::cli {
namespace {

constexpr std::string_view kReferenceHead = R"(# Configuration

Every key of `floe train`, from its schema: `floe train --reference` writes this page. How files,
strategies, experiments and the command line are put together is in [training.md](training.md).

)";

std::vector<KeySection> train_keys() { return {{"Keys:", config::fields_of<train::RunConfig>()}}; }

train::RunSignals of_a_run;
std::atomic<std::int64_t> interrupted_ns{0};  // by the first Ctrl-C; 0: not yet
constexpr std::int64_t kSamePress = 500'000'000;

std::atomic<bool> stacks_asked{false};

// Writes the stacks of all threads to the log when SIGUSR2 asks for them.
class StackWriter {
 public:
  StackWriter() = default;

 private:
  comm::Watch watch_{std::chrono::milliseconds(200), [] {
                       if (stacks_asked.exchange(false)) {
                         log::info("SIGUSR2: where the threads of this rank are");
                         for (const std::string& line : stacks_of_all_threads()) log::info(line);
                       }
                       return false;
                     }};
};

void handle(int number) {
  if (number == SIGUSR2) {
    stacks_asked = true;
    return;
  }
  if (number == SIGUSR1) {
    of_a_run.save = true;
    return;
  }
  of_a_run.ask_to_stop();
  if (number != SIGINT) return;
  const std::int64_t now = train::RunSignals::now_ns();
  if (interrupted_ns == 0) {
    interrupted_ns = now;
  } else if (now - interrupted_ns >= kSamePress) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
}

// What signals ask of a run from now on. Ctrl-C, SIGTERM and SIGHUP stop it after the step under
// way, with a checkpoint; SIGUSR1 lets it save and go on; SIGUSR2 writes where its threads are to
// the log; SIGPIPE (nobody reads its output any more) is nothing. Schedulers and launchers send
// SIGTERM to everybody, and to some twice: repeats change nothing. A person's second Ctrl-C, half a
// second or more after the first, ends the process at once. What nohup and the like ignore stays
// ignored.
train::RunSignals& signals_of_a_run() {
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  return of_a_run;
}

// A launcher that kills the ranks before they are done saving.
void warn_of_short_grace(double needed_s) {
  const char* text = std::getenv(launch::kGraceVariable);
  const char* rank = std::getenv("RANK");
  const bool first = !rank || std::string_view(rank) == "0";
  const double given_s = text ? std::strtod(text, nullptr) : 0;
  if (text && first && given_s < needed_s)
    log::warn("floe launch ends ranks ", given_s, " s after SIGTERM, before run.stop_grace_s (",
              needed_s, " s) is over; start it with --grace ", needed_s + 5);
}

Exit run_train(const Args& args) {
  const Options options(kTrainCommand, args);
  if (options.has("--reference")) {
    std::cout << kReferenceHead
              << config::markdown_reference(config::fields_of<train::RunConfig>());
    return Exit::done;
  }
  const auto loaded =
      train::load_run_config(config::layers_from_arguments(options.words(), own_configs()));
  if (options.has("--print-config")) {
    std::cout << config::print_config(loaded.values);
    return Exit::done;
  }
  warn_of_short_grace(loaded.config.run.stop_grace_s);
  diagnostics::MemoryCounter::install();
  train::RunSignals& signals = signals_of_a_run();
  const StackWriter stack_writer;
  const auto world = train::join_world(loaded.config.dist, loaded.config.run.folder());
  if (world->size() == 1 && world->source().find("without srun") != std::string::npos)
    log::warn("this is ", world->source(),
              ": 'srun floe train' starts a rank for each of its tasks");
  if (world->rank() == 0 && world->on_several_hosts())
    for (const std::string& line : world->placement()) log::info(line);
  bool stopped = false;
  const int code = comm::guarded(*world, [&] {
    train::Trainer trainer(choose_strategy(loaded, *world), world, signals);
    trainer.run();
    stopped = trainer.stopped();
    if (stopped)
      log::warn("stopped by a signal after step ", trainer.step(), " of ", trainer.total_steps());
  });
  const Exit exit = stopped && code == 0 ? Exit::stopped : static_cast<Exit>(code);
  if (world->rank() == 0)
    train::end_status(loaded.config.run.folder(), static_cast<int>(exit), stopped,
                      stopped ? "stopped by a signal" : world->failure());
  return exit;
}

}  // namespace

const Command kTrainCommand{
    .name = "train",
    .summary = "train a model, sharded over the ranks",
    .about = R"(usage: floe train CONFIG... [key=value] [++key=value] [~key] [--print-config]

Trains a model. One process is one rank: start several with floe launch, torchrun, srun or mpirun.

CONFIG is YAML; later files win over earlier ones, the command line over all. strategy=NAME and
experiment=[NAME, NAME] take strategy/NAME.yaml and experiment/NAME.yaml, looked for beside the
first CONFIG, in ./configs, then among those that come with floe. strategy=auto lets floe choose
the fastest strategy that fits into the memory, when the run starts.
)",
    .options =
        {
            {"key=value", "",
             "sets; lists and blocks are written inline: strategy.units=[DecoderLayer]"},
            {"++key=value", "", "adds; a block merges with the one that is there"},
            {"~key", "", "removes: what can be off is off, anything else is back to its default"},
            {"--print-config", "",
             "every value of the configuration and where it comes from, then stop"},
            {"--reference", "", "the page about all keys, docs/configuration.md, then stop"},
        },
    .closing = R"(  floe launch -n 2 -- train my.yaml strategy=full_shard train.steps=1000
  torchrun --nproc-per-node 8 --no-python floe train my.yaml experiment=[openflamingo_3b]

The run's files are in run.dir/run.name: config.yaml, metrics.jsonl (a line per step), status.json
(floe status), logs/, tensorboard/, wandb/, checkpoints/. Started again, the command goes on from the newest valid
checkpoint. Ctrl-C once (or SIGTERM, SIGHUP) stops after the step under way, with a checkpoint and
exit code 75; a second Ctrl-C stops now. SIGUSR1 saves and goes on; SIGUSR2 writes the stacks of
all threads to the log.
)",
    .words = "PATH",
    .keys = train_keys,
    .run = run_train,
};

}  // namespace floe::cli
