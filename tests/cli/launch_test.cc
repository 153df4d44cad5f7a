// The launcher without the program around it: runs in the sanitizer builds too.
#include "floe/launch/launch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "floe/core/error.h"
#include "floe/launch/child.h"
#include "floe/launch/environment.h"

namespace floe::launch::launch_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

LaunchOptions shell(int num_ranks, const std::string& script) {
  LaunchOptions options;
  options.command = {"sh", "-c", script};
  options.num_ranks = num_ranks;
  options.grace = milliseconds(300);
  options.kill_after = milliseconds(300);
  return options;
}

struct Outcome {
  LaunchResult result;
  std::string out, err;
  double seconds;
};

Outcome run(const LaunchOptions& options) {
  Outcome outcome;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto began = Clock::now();
  outcome.result = launch(options);
  outcome.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The whole of a file, or nothing.
std::string slurp(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whether a process lives; one that waits to be reaped does not.
bool lives(pid_t pid) {
  const std::string stat = slurp(str("/proc/", pid, "/stat"));
  const auto name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.size() > name_end + 2 && stat[name_end + 2] != 'Z';
}

TEST(Launch, GivesEachRankItsPlace) {
  const Outcome r =
      run(shell(3, "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR"));
  EXPECT_EQ(r.result.exit_code(), 0);
  EXPECT_FALSE(r.result.first_failure);
  for (const int rank : {0, 1, 2})
    EXPECT_TRUE(contains(r.out, str("[", rank, "] ", rank, " ", rank, " 3 3 127.0.0.1\n")))
        << r.out;
}

TEST(Launch, RanksShareOnePort) {
  const Outcome r = run(shell(2, "echo port $MASTER_PORT"));
  const auto port = r.out.substr(r.out.find("port "), r.out.find('\n') - r.out.find("port "));
  EXPECT_TRUE(contains(r.out, "[0] " + port + "\n")) << r.out;
  EXPECT_TRUE(contains(r.out, "[1] " + port + "\n")) << r.out;
}

TEST(Launch, ReturnsTheFirstFailure) {
  const Outcome r =
      run(shell(3, "if [ $RANK = 1 ]; then echo oh no >&2; exit 7; fi; sleep 0.2; exit 3"));
  EXPECT_EQ(r.result.exit_code(), 7);
  EXPECT_EQ(r.result.first_failure, 1);
  EXPECT_EQ(r.result.last_stderr, std::vector<std::string>{"oh no"});
  EXPECT_EQ(describe_failure(r.result), "rank 1 of 3 failed first: it returned exit code 7");
}

TEST(Launch, NamesTheSignalThatEndedARank) {
  const Outcome r = run(shell(2, "if [ $RANK = 0 ]; then kill -KILL $$; fi; sleep 0.1"));
  EXPECT_EQ(r.result.exit_code(), 128 + SIGKILL);
  EXPECT_EQ(describe_failure(r.result), "rank 0 of 2 failed first: it was ended by SIGKILL");
}

TEST(Launch, StopsRanksThatHangAfterAFailure) {
  const Outcome r = run(shell(2, "if [ $RANK = 1 ]; then exit 5; fi; sleep 60"));
  EXPECT_EQ(r.result.exit_code(), 5);
  EXPECT_EQ(r.result.ranks[0].signal, SIGTERM);
  EXPECT_GE(r.seconds, 0.3);
  EXPECT_LT(r.seconds, 20);
}

TEST(Launch, KillsRanksThatIgnoreSigterm) {
  const Outcome r = run(
      shell(2, "if [ $RANK = 1 ]; then exit 5; fi; trap '' TERM; while true; do sleep 0.1; done"));
  EXPECT_EQ(r.result.exit_code(), 5);
  EXPECT_EQ(r.result.ranks[0].signal, SIGKILL);
  EXPECT_GE(r.seconds, 0.6);
}

TEST(Launch, PassesSigintOn) {
  const Outcome r =
      run(shell(2,
                "trap 'echo got it; exit 0' INT; if [ $RANK = 0 ]; then sleep 0.3; kill "
                "-INT $PPID; fi; while true; do sleep 0.05; done"));
  EXPECT_EQ(r.result.exit_code(), 0);
  EXPECT_TRUE(contains(r.out, "[0] got it\n")) << r.out;
  EXPECT_TRUE(contains(r.out, "[1] got it\n")) << r.out;
}

TEST(Launch, ASecondSigintEndsRanksThatDoNotReact) {
  LaunchOptions options =
      shell(2,
            "trap '' INT TERM; if [ $RANK = 0 ]; then sleep 0.2; kill -INT "
            "$PPID; sleep 0.2; kill -INT $PPID; fi; while true; do sleep 0.05; done");
  options.grace = milliseconds(60'000);
  const Outcome r = run(options);
  EXPECT_EQ(r.result.exit_code(), 128 + SIGKILL);
  EXPECT_LT(r.seconds, 20);
}

// A scheduler may signal the launcher again when the ranks have ended and it is about to.
TEST(Launch, ASignalAfterTheEndDoesNotChangeTheExitCode) {
  LaunchOptions options =
      shell(1, "trap 'exit 75' TERM; kill -TERM $PPID; while true; do sleep 0.05; done");
  options.last = true;
  options.kill_after = std::chrono::minutes(1);
  EXPECT_EXIT(
      {
        const LaunchResult result = launch(options);
        raise(SIGTERM);
        std::_Exit(result.exit_code());
      },
      testing::ExitedWithCode(75), "");
}

// A thread of the launching process (a GPU driver has some) may be the one that gets SIGCHLD, and
// drop it.
TEST(Launch, NoticesTheEndThoughAnotherThreadGetsTheSignal) {
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) std::this_thread::sleep_for(milliseconds(5));
  });
  for (int i = 0; i < 5; ++i) {
    const Outcome outcome = run(shell(2, "exec >&- 2>&-; sleep 0.2"));
    EXPECT_EQ(outcome.result.exit_code(), 0);
    EXPECT_LT(outcome.seconds, 10);
  }
  over = true;
  other.join();
}

TEST(Launch, LeavesNoGrandchildren) {
  const Outcome r = run(shell(1, "sleep 60 & echo $! >&2"));
  ASSERT_EQ(r.result.exit_code(), 0);
  const pid_t grandchild = std::stoi(r.err.substr(4));
  for (int i = 0; i < 200 && lives(grandchild); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_FALSE(lives(grandchild));
  EXPECT_LT(r.seconds, 20);
}

TEST(Launch, KeepsLinesWhole) {
  const Outcome r =
      run(shell(4, "i=0; while [ $i -lt 200 ]; do echo line $i of $RANK; i=$((i+1)); done"));
  std::map<std::string, int> next;
  std::istringstream lines(r.out);
  for (std::string line; std::getline(lines, line);) {
    const std::string rank = line.substr(1, 1);
    EXPECT_EQ(line, str("[", rank, "] line ", next[rank]++, " of ", rank));
  }
  for (const char* rank : {"0", "1", "2", "3"}) EXPECT_EQ(next[rank], 200);
}

TEST(Launch, CanLeaveThePrefixOut) {
  LaunchOptions options = shell(1, "echo plain $FLOE_LOG_RANK; printf 'no newline'");
  options.prefix = false;
  EXPECT_EQ(run(options).out, "plain\nno newline\n");
  options.prefix = true;
  EXPECT_EQ(run(options).out, "[0] plain 0\n[0] no newline\n");
}

TEST(Launch, GivenVariablesWin) {
  LaunchOptions options = shell(1, "echo $MASTER_PORT $MINE");
  options.environment = {{"MASTER_PORT", "12345"}, {"MINE", "a b=c"}};
  EXPECT_EQ(run(options).out, "[0] 12345 a b=c\n");
}

TEST(Launch, RanksReadAnEmptyInput) {
  EXPECT_EQ(run(shell(1, "cat; echo done")).out, "[0] done\n");
}

TEST(Launch, AMissingProgramIsBadUsage) {
  LaunchOptions options = shell(2, "");
  options.command = {"/no/such/program"};
  try {
    launch(options);
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(contains(error.what(), "cannot start '/no/such/program'")) << error.what();
  }
}

TEST(Launch, RefusesNonsense) {
  LaunchOptions options = shell(0, "true");
  EXPECT_THROW(launch(options), ConfigError);
  options = shell(1, "true");
  options.command.clear();
  EXPECT_THROW(launch(options), ConfigError);
}

TEST(LaunchEnvironment, SharesTheCores) {
  unsetenv("OMP_NUM_THREADS");
  const auto threads = [](int world) {
    for (const auto& [name, value] : rank_environment(0, world, 1, true))
      if (name == "OMP_NUM_THREADS") return std::stoi(value);
    return 0;
  };
  EXPECT_GE(threads(1), 1);
  EXPECT_EQ(threads(100'000), 1);
  setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_EQ(threads(1), 0) << "what is set stays";
  unsetenv("OMP_NUM_THREADS");
}

TEST(LaunchEnvironment, PortsAreBelowTheEphemeralRange) {
  for (int i = 0; i < 20; ++i) {
    const int port = free_port();
    EXPECT_GE(port, 10'000);
    EXPECT_LE(port, 32'000);
  }
}

TEST(LaunchLines, ForwardsOnlyWholeLines) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  const auto read_all = [&] {
    char bytes[4096];
    const ssize_t count = read(ends[0], bytes, sizeof bytes);
    return std::string(bytes, count > 0 ? static_cast<std::size_t>(count) : 0);
  };
  LineForwarder lines(ends[1], "> ", 2);
  lines.feed("one");
  EXPECT_EQ(read_all(), "");
  lines.feed(" line\n\ntw");
  EXPECT_EQ(read_all(), "> one line\n> \n");
  lines.feed("o\nthree");
  EXPECT_EQ(read_all(), "> two\n");
  lines.finish();
  EXPECT_EQ(read_all(), "> three\n");
  lines.finish();
  EXPECT_EQ(read_all(), "");
  EXPECT_EQ(lines.last_lines(), (std::deque<std::string>{"two", "three"}));
  close(ends[0]);
  close(ends[1]);
}

TEST(LaunchLines, CutsALineThatNeverEnds) {
  const int null = open("/dev/null", O_WRONLY);
  LineForwarder lines(null, "", 3);
  for (int i = 0; i < 40; ++i) lines.feed(std::string(4096, 'x'));
  ASSERT_EQ(lines.last_lines().size(), 2u);
  EXPECT_EQ(lines.last_lines()[0].size(), 64u * 1024u);
  close(null);
}

}  // namespace
}  // namespace floe::launch::launch_test
