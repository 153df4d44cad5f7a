// Ranks of one host that read each other's memory: the same bits as over sockets, wherever it is
// permitted, and never what a rank has let go of.
#include <ATen/ATen.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <random>
#include <thread>

#include "floe/comm/backends.h"
#include "floe/comm/gloo/host_memory.h"
#include "floe/comm/gloo/peer_memory.h"
#include "floe/comm/world.h"
#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/launch/environment.h"
#include "floe/observe/diagnostics/memory_counter.h"
#include "tests/support/ranks.h"
#include "tests/support/same_bits.h"
#include "tests/support/text.h"

namespace floe::comm::same_host_test {
namespace {

using namespace std::chrono_literals;
using test::same_bits;

constexpr const char* kSwitch = "FLOE_SAME_HOST_MEMORY";

std::shared_ptr<World> join_at(int port, std::chrono::milliseconds timeout = 120s) {
  WorldOptions options;
  options.timeout = timeout;
  options.rendezvous = find_rendezvous({}, process_environment());
  if (port != 0) options.rendezvous.port = port;
  return World::join(options);
}

// The same ranks a second time.
std::shared_ptr<World> join_again(World& world) {
  if (world.rank() == 0) world.publish("port", std::to_string(launch::free_port()));
  return join_at(std::stoi(world.lookup("port", 60s).value()));
}

// Whether this system lets ranks of one launcher read each other's memory, by what `floe doctor`
// says: the tests hold against it what ranks do.
bool is_permitted() {
  return !closed_memory() && (!memory_needs_launcher() || ends_before_parent());
}

// Random elements, others on every rank and in every collective.
at::Tensor data_of(int rank, std::int64_t numel, at::ScalarType dtype, int salt) {
  const bool whole = at::isIntegralType(dtype, /*includeBool=*/true);
  const at::Tensor data = at::empty({numel}, whole ? dtype : at::kFloat);
  std::mt19937 random(static_cast<unsigned>(1000 * salt + rank));
  if (whole) {
    auto* const bytes = static_cast<unsigned char*>(data.mutable_data_ptr());
    for (std::size_t i = 0; i < data.nbytes(); ++i)
      bytes[i] = static_cast<unsigned char>(dtype == at::kBool ? random() & 1 : random());
    return data;
  }
  // Of very different magnitudes, so that another order of a sum gives other bits.
  auto* const floats = static_cast<float*>(data.mutable_data_ptr());
  for (std::int64_t i = 0; i < numel; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    floats[i] = static_cast<float>(static_cast<std::int32_t>(bits) >> 8) * 0x1p-20F *
                static_cast<float>(1U << (bits & 7U));
  }
  return data.to(dtype);
}

at::Tensor as_it_is(const at::Tensor& tensor) { return tensor; }

// What one of the collectives leaves on this rank, of `numel` elements per slice, where all that it
// is given has been through `put`.
template <class Put = at::Tensor (&)(const at::Tensor&)>
at::Tensor result_of(Group& group, int which, std::int64_t numel, at::ScalarType dtype,
                     Put&& put = as_it_is) {
  const int size = group.size();
  if (which == 0) {
    const at::Tensor all = put(at::zeros({size * numel}, dtype));
    group.all_gather(all, put(data_of(group.rank(), numel, dtype, 1)), "gather").wait();
    return all;
  }
  if (which == 1) {
    const at::Tensor root = put(data_of(group.rank(), numel, dtype, 2));
    for (int r = 0; r < size; ++r) group.broadcast(root, r, "broadcast").wait();
    return root;
  }
  const at::Tensor whole = put(data_of(group.rank(), size * numel, dtype, 3));
  if (which == 2) {
    const at::Tensor slice = put(at::zeros({numel}, dtype));
    group.reduce_scatter(slice, whole, Reduce::average, "scatter").wait();
    return slice;
  }
  // Not always a multiple of the ranks.
  const at::Tensor part = whole.narrow(0, 0, std::max<std::int64_t>(0, size * numel - which + 3));
  group.all_reduce(part, Reduce::sum, "reduce").wait();
  return part;
}
constexpr int kCollectives = 5;

void check_bits(Group& sockets, Group& memory) {
  const auto check = [&](at::ScalarType dtype, std::int64_t bytes, int more) {
    const auto element = static_cast<std::int64_t>(c10::elementSize(dtype));
    const bool adds = dtype != at::kByte && dtype != at::kBool;
    for (int which = 0; which < (adds ? kCollectives : 2); ++which)
      EXPECT_TRUE(same_bits(result_of(sockets, which, bytes / element + more, dtype),
                            result_of(memory, which, bytes / element + more, dtype)))
          << "collective " << which << " of " << bytes << " bytes and " << more << " elements of "
          << c10::toString(dtype);
  };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt,
                           at::kByte, at::kBool})
    for (const int more : {-1, 0, 1}) check(dtype, kReadBytes, more);
  for (const int more : {-1, 0, 1}) {
    check(at::kBFloat16, kMiB / 2, more);  // a chunk of a sum
    check(at::kFloat, kMiB, more);
  }
  for (const int more : {0, 1}) check(at::kFloat, 4 * kMiB, more);  // a piece of what is read
}

void same_bits_as_over_sockets() {
  setenv(kSwitch, "0", 1);
  const auto sockets = join_at(0);
  setenv(kSwitch, "1", 1);
  const auto memory = join_again(*sockets);
  const auto before = peer_memory_bytes_read();
  check_bits(*sockets->group(), *memory->group());
  EXPECT_EQ(peer_memory_bytes_read() > before, is_permitted()) << "sockets were compared";
  // One rank is not asked: some go from memory to memory, others not.
  setenv(kSwitch, sockets->rank() == 1 ? "0" : "1", 1);
  const auto both = join_again(*memory);
  check_bits(*sockets->group(), *both->group());
}

TEST_RANKS(SameHost, BitsOnTwoRanks, 2) { same_bits_as_over_sockets(); }
TEST_RANKS(SameHost, BitsOnThreeRanks, 3) { same_bits_as_over_sockets(); }
TEST_RANKS(SameHost, BitsOnFourRanks, 4) { same_bits_as_over_sockets(); }

// Bytes that this rank reads of others in each kind of collective, where `peers` others can be
// read, and nobody's below the threshold.
void expect_reads(Group& group, int peers) {
  if (!is_permitted()) peers = 0;
  const auto reads = [](auto&& collective) {
    const auto before = peer_memory_bytes_read();
    collective();
    return peer_memory_bytes_read() - before;
  };
  const std::int64_t slice = kMiB, size = group.size();
  for (const bool large : {true, false}) {
    const std::int64_t bytes = large ? slice : kReadBytes - 1, expected = large ? peers * slice : 0;
    const at::Tensor own = at::ones({bytes}, at::kByte), all = at::ones({size * bytes}, at::kByte);
    EXPECT_EQ(reads([&] { group.all_gather(all, own, "gather").wait(); }), expected);
    const at::Tensor sum = at::ones({bytes / 4}), whole = at::ones({size * (bytes / 4)});
    EXPECT_EQ(reads([&] { group.reduce_scatter(sum, whole, Reduce::sum, "scatter").wait(); }),
              expected);
    EXPECT_EQ(reads([&] { group.all_reduce(whole, Reduce::sum, "reduce").wait(); }), 2 * expected);
  }
}

TEST_RANKS(SameHost, MemoryIsRead, 3) {
  const auto world = join_at(0);
  expect_reads(*world->group(), 2);
  // A broadcast on three ranks is two sends of rank 0.
  const auto before = peer_memory_bytes_read();
  world->group()->broadcast(at::ones({kMiB}, at::kByte), 0, "broadcast").wait();
  EXPECT_EQ(peer_memory_bytes_read() - before, world->rank() && is_permitted() ? kMiB : 0);
}

// A file of memory that no process can read for another; -1 where the system has none.
int secret_file() {
  constexpr long kMemfdSecret = 447;  // on every architecture
  return static_cast<int>(syscall(kMemfdSecret, 0));
}

at::Tensor in_closed_memory(const at::Tensor& data) {
  const int file = secret_file();
  const std::size_t bytes = data.nbytes();
  require(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, std::strerror(errno));
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  require(memory != MAP_FAILED, "no closed memory: ", std::strerror(errno));
  close(file);
  EXPECT_FALSE(is_readable(memory, bytes));
  return at::from_blob(
             memory, data.sizes(), [bytes](void* begin) { munmap(begin, bytes); }, data.options())
      .copy_(data);
}

// The most that a collective allocates at once.
template <class F>
std::int64_t allocated(Group& group, F&& collective) {
  auto& memory = diagnostics::MemoryCounter::install();
  group.barrier("begin");
  const auto before = memory.current_bytes();
  memory.reset_peak();
  collective();
  return memory.peak_bytes() - before;
}

// All tensors of a rank stay below the usual limit of locked memory, 8 MiB.
void closed_memory_is_copied() {
  diagnostics::MemoryCounter::install();
  const auto world = join_at(0);
  Group& group = *world->group();
  const std::int64_t numel = kMiB / 4;  // of a slice: two chunks of a sum
  for (int which = 0; which < kCollectives; ++which) {
    const at::Tensor readable = result_of(group, which, numel, at::kFloat);
    const auto before = peer_memory_bytes_read();
    EXPECT_TRUE(same_bits(readable, result_of(group, which, numel, at::kFloat, in_closed_memory)))
        << "collective " << which;
    EXPECT_EQ(peer_memory_bytes_read() > before, is_permitted()) << "collective " << which;
  }

  // As much as Note [Direct collectives] says.
  const std::int64_t slice = is_permitted() ? kMiB : 0, size = group.size();
  const at::Tensor open = at::ones({size * numel}), own = at::ones({numel}),
                   closed = in_closed_memory(open);
  EXPECT_EQ(allocated(group, [&] { group.all_gather(closed, own, "gather").wait(); }), slice);
  const auto scatter = [&](const at::Tensor& input) {
    return allocated(group,
                     [&] { group.reduce_scatter(own, input, Reduce::sum, "scatter").wait(); });
  };
  EXPECT_EQ(scatter(closed) - scatter(open), (size - 1) * slice);
  const bool passes_on = world->rank() % 2 == 0;  // 0 to 2 and 1, 2 to 3
  EXPECT_EQ(allocated(group, [&] { group.broadcast(closed, 0, "broadcast").wait(); }),
            passes_on ? size * slice : 0);
}

TEST(SameHost, ClosedMemoryIsCopied) {
  if (const int file = secret_file(); file >= 0)
    close(file);
  else if (errno == ENOSYS)
    GTEST_SKIP() << "this system has no memfd_secret";
  test::run_on_ranks("SameHost", "ClosedMemoryIsCopied", 4, &closed_memory_is_copied);
}

TEST_RANKS(SameHost, OneRankDoesNotWantIt, 3) {
  const bool wants = process_environment()("RANK") != "1";
  setenv(kSwitch, wants ? "" : "0", 1);
  expect_reads(*join_at(0)->group(), wants ? 1 : 0);
}

// Rank 1 closes its memory: it could still read that of others, but nothing goes one way only.
TEST_RANKS(SameHost, OneRankIsNotPermittedTo, 3) {
  if (geteuid() == 0) {  // who may read everything
    const gid_t nobody = 65534;
    ASSERT_EQ(setgroups(1, &nobody), 0);
    ASSERT_EQ(setresgid(nobody, nobody, nobody), 0);
    ASSERT_EQ(setresuid(nobody, nobody, nobody), 0);
  }
  const bool open = process_environment()("RANK") != "1";
  ASSERT_EQ(prctl(PR_SET_DUMPABLE, open ? 1 : 0), 0);
  expect_reads(*join_at(0)->group(), open ? 1 : 0);
}

void expect_wrong_switch() {
  setenv(kSwitch, "no", 1);
  try {
    join_at(0);
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(), "FLOE_SAME_HOST_MEMORY is 'no', not 0 or 1");
  }
}

TEST_RANKS(SameHost, TheSwitchIsOnOrOff, 2) { expect_wrong_switch(); }
TEST_RANKS(SameHost, TheSwitchIsOnOrOffForOneRankToo, 1) { expect_wrong_switch(); }
TEST(SameHost, TheSwitchIsOnOrOffWithoutALauncher) {
  expect_wrong_switch();
  unsetenv(kSwitch);
}

// All end at once like the one that is wrong, whichever that is.
TEST(SameHost, AWrongSwitchOfOneRankEndsAll) {
  const char* wrong = std::getenv("FLOE_TEST_WRONG_RANK");
  if (test::is_rank()) {
    try {
      if (process_environment()("RANK") == wrong) setenv(kSwitch, "off", 1);
      join_at(0, 300s);
    } catch (const Error& e) {
      std::cerr << e.what();
      std::exit(static_cast<int>(e.exit()));
    }
    std::exit(0);
  }
  for (const std::size_t rank : {0, 1}) {
    setenv("FLOE_TEST_WRONG_RANK", std::to_string(rank).c_str(), 1);
    const auto outcome = test::start_ranks("SameHost", "AWrongSwitchOfOneRankEndsAll", 3, 60s);
    EXPECT_LT(outcome.seconds, 30);
    EXPECT_EQ(outcome.exit_codes, (std::vector<int>{2, 2, 2}));
    for (const std::string& output : outcome.outputs) {
      const std::string said = output.substr(output.rfind('\n') + 1);  // behind torch's own lines
      EXPECT_EQ(test::times(said, "FLOE_SAME_HOST_MEMORY is 'off', not 0 or 1"), 1) << output;
    }
  }
  unsetenv("FLOE_TEST_WRONG_RANK");
}

// What Yama keeps of an agreement ends with the parent. The agreement itself, admit_siblings(), is
// made only where kernel.yama.ptrace_scope is 1, and ranks without CAP_SYS_PTRACE need it there: on
// other systems no test comes by it.
TEST(SameHost, WhoEndsBeforeItsParent) {
  const auto ends = [](const std::function<void()>& begin) {
    const pid_t pid = fork();
    if (pid == 0) {
      for (const char* variable : {"TORCHELASTIC_RUN_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK",
                                   "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "HOROVOD_RANK"})
        unsetenv(variable);
      begin();
      _exit(ends_before_parent() ? 1 : 0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 1;
  };
  EXPECT_FALSE(ends([] { setenv("RANK", "0", 1); }));  // by hand
  EXPECT_TRUE(ends([] { prctl(PR_SET_PDEATHSIG, SIGKILL); }));
  for (const char* variable : {"TORCHELASTIC_RUN_ID", "SLURM_PROCID", "PMIX_RANK"})
    EXPECT_TRUE(ends([&] { setenv(variable, "1", 1); })) << variable;
}

TEST(SameHost, WhatClosesMemory) {
  const auto said = [](const SystemRules& rules) {
    const auto closed = closed_by(rules);
    return closed ? closed->cause + ". " + closed->advice : "";
  };
  const auto expect = [&](const SystemRules& rules, const std::string& cause,
                          const std::string& advice) {
    EXPECT_TRUE(said(rules).starts_with(cause)) << said(rules);
    EXPECT_EQ(test::times(said(rules), advice), 1) << said(rules);
  };
  expect({.read_error = EPERM}, "process_vm_readv is refused (Operation not permitted)", "seccomp");
  expect({.tells_processes = false}, "/proc/sys/kernel/random/boot_id", "mount /proc");
  for (const char scope : {'0', '1'}) EXPECT_EQ(said({.yama_scope = scope}), "");
  expect({.yama_scope = '2'}, "kernel.yama.ptrace_scope is 2", "set it to 1 to spare");
  EXPECT_EQ(said({.yama_scope = '2', .may_trace = true}), "");
  for (const bool may : {false, true})
    expect({.yama_scope = '3', .may_trace = may}, "kernel.yama.ptrace_scope is 3",
           "sets it to 1 in /etc/sysctl.d");
}

// By the kernel's own answer.
bool has_ptrace_capability() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> data{};
  return syscall(SYS_capget, &header, data.data()) == 0 &&
         (data[0].effective >> CAP_SYS_PTRACE & 1U) != 0;
}

TEST(SameHost, CapabilitiesAreLookedAt) {
  EXPECT_EQ(may_trace(), has_ptrace_capability());
  const pid_t pid = fork();
  if (pid == 0) {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(2);
    _exit(may_trace() == has_ptrace_capability() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// A process with this memory, which lives until the object ends.
class Other {
 public:
  explicit Other(const std::function<void()>& begin = [] {}) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      begin();
      EXPECT_EQ(write(ends[1], "x", 1), 1);
      for (;;) pause();
    }
    char begun = 0;
    EXPECT_EQ(read(ends[0], &begun, 1), 1);
    close(ends[0]);
    close(ends[1]);
  }
  ~Other() { end(); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  MemoryPlace at(MemoryPlace place) const {
    place.pid = static_cast<std::uint64_t>(pid_);
    return place;
  }

 private:
  pid_t pid_ = 0;
};

std::string failure_of(const PeerMemory& memory, const std::vector<char>& data) {
  std::vector<char> copy(data.size());
  try {
    memory.read(copy.data(), reinterpret_cast<std::uint64_t>(data.data()), data.size());
  } catch (const Error& e) {
    return e.what();
  }
  EXPECT_EQ(copy, data);
  return "";
}

TEST(PeerMemory, IsThatOfTheProcessThatSaidSo) {
  if (!is_permitted()) GTEST_SKIP() << "this system lets nobody read another's memory";
  OwnWord word;
  const std::vector<char> data(100'000, 'a');
  Other same, gave_up([&] { word.take_back(); });
  EXPECT_TRUE(PeerMemory(same.at(word.place())).can_be_read());
  EXPECT_EQ(failure_of(PeerMemory(same.at(word.place())), data), "");
  EXPECT_EQ(failure_of(PeerMemory(same.at(word.place())), {}), "");

  EXPECT_FALSE(PeerMemory(gave_up.at(word.place())).can_be_read());
  EXPECT_EQ(failure_of(PeerMemory(gave_up.at(word.place())), data),
            "it has given up what this rank was reading");
  // Another process that has its number now.
  MemoryPlace another = same.at(word.place());
  another.word += 1;
  EXPECT_FALSE(PeerMemory(another).can_be_read());
  EXPECT_NE(failure_of(PeerMemory(another), data), "");

  const PeerMemory gone(same.at(word.place()));
  same.end();
  EXPECT_FALSE(gone.can_be_read());
  EXPECT_EQ(failure_of(gone, data), "its memory cannot be read: No such process");
}

TEST(PeerMemory, WordsAreOfOneGroupAndProcess) {
  OwnWord first, second;
  EXPECT_NE(first.place().word, second.place().word);
  EXPECT_NE(first.place().word_address, second.place().word_address);
  EXPECT_EQ(first.place().pid, static_cast<std::uint64_t>(getpid()));
  const auto address = first.place().word_address;
  first.take_back();
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(address), 0U);
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(second.place().word_address),
            second.place().word);
}

TEST(PeerMemory, OfADeviceIsClosed) {
  if (!is_permitted()) GTEST_SKIP() << "this system lets nobody read another's memory";
  const std::size_t bytes = 1 << 20;
  void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_TRUE(is_readable(memory, bytes));
  EXPECT_TRUE(is_readable(memory, 0));
  auto* const last = static_cast<char*>(memory) + bytes - 4096;
  ASSERT_EQ(mprotect(last, 4096, PROT_NONE), 0);
  EXPECT_FALSE(is_readable(memory, bytes));
  munmap(memory, bytes);
}

// Each rank writes over everything that it gave and got as soon as its own wait is over.
TEST_RANKS(SameHost, TensorsBelongToTheCollectiveUntilItsEnd, 3) {
  const auto world = join_at(0);
  Group& group = *world->group();
  const std::int64_t numel = 300'000;
  std::mt19937 random(static_cast<unsigned>(world->rank()));
  const at::Tensor own = at::empty({numel}), all = at::empty({3 * numel}),
                   whole = at::empty({3 * numel}), slice = at::empty({numel});
  for (int round = 0; round < 40; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    own.fill_(10 * round + world->rank());
    group.all_gather(all, own, "gather").wait();
    own.fill_(-1);
    bool right = true;
    for (int r = 0; r < 3; ++r)
      right = right && at::all(all.narrow(0, r * numel, numel) == 10 * round + r).item<bool>();
    all.fill_(-2);
    whole.fill_(round + world->rank());
    group.reduce_scatter(slice, whole, Reduce::sum, "scatter").wait();
    whole.fill_(-3);
    right = right && at::all(slice == 3 * round + 3).item<bool>();
    whole.fill_(round + world->rank());
    group.all_reduce(whole, Reduce::sum, "reduce").wait();
    right = right && at::all(whole == 3 * round + 3).item<bool>();
    whole.fill_(world->rank() == round % 3 ? round : -4);
    group.broadcast(whole, round % 3, "broadcast").wait();
    right = right && at::all(whole == round).item<bool>();
    whole.fill_(-5);
    EXPECT_TRUE(right) << "round " << round;
  }
}

// An all-gather that nobody waits for yet may take as long as it likes, whoever is late.
TEST_RANKS(SameHost, TimeIsCountedFromTheWait, 2) {
  const auto world = join_at(0, 1500ms);
  const at::Tensor own = at::full({300'000}, 1.0F * world->rank()), all = at::zeros({600'000});
  if (world->rank() == 1) std::this_thread::sleep_for(3s);
  Work gather = world->group()->all_gather(all, own, "early");
  if (world->rank() == 0) std::this_thread::sleep_for(3s);
  gather.wait();
  EXPECT_EQ(all.sum().item<double>(), 300'000);
  EXPECT_NO_THROW(world->group()->barrier("both"));
}

// Rank 0 gives up without an abort, and rank 1 comes when the tensor is in use for something else.
TEST_RANKS(SameHost, WhatATimeoutLetGoOfIsNotRead, 2) {
  const auto world = join_at(0, 1500ms);
  const at::Tensor own = at::ones({300'000}), all = at::zeros({600'000});
  if (world->rank() == 1) {
    ASSERT_TRUE(world->lookup("let go", 30s));
    EXPECT_THROW(world->group()->all_gather(all, own, "late").wait(), CommError);
    world->publish("seen", "");
    return;
  }
  try {
    world->group()->all_gather(all, own, "late").wait();
    ADD_FAILURE() << "rank 1 is not missed";
  } catch (const CommError& e) {
    EXPECT_STREQ(e.what(),
                 "all-gather 'late' on rank 0 of 2 (group world) failed: nothing came from or went "
                 "to rank 1: Timed out waiting 1500ms for recv operation to complete");
  }
  all.fill_(-1);  // where its part was read from
  world->publish("let go", "");
  EXPECT_TRUE(world->lookup("seen", 30s));
}

// Rank 2, which is reached by sockets, dies while the others read each other's memory: they have
// their tensors back when they hear of it.
TEST(SameHost, NothingIsReadAfterSocketsHaveFailed) {
  if (!test::is_rank()) {
    const auto outcome =
        test::start_ranks("SameHost", "NothingIsReadAfterSocketsHaveFailed", 3, 60s);
    EXPECT_EQ(outcome.exit_codes, (std::vector<int>{0, 0, 128 + SIGKILL}))
        << outcome.outputs[0] << outcome.outputs[1];
    return;
  }
  setenv(kSwitch, process_environment()("RANK") == "2" ? "0" : "1", 1);
  const auto world = join_at(0, 60s);
  world->group()->barrier("begin");
  if (world->rank() == 2) {
    std::this_thread::sleep_for(10ms);
    raise(SIGKILL);
  }
  // Takes longer to read than to hear of rank 2, and is not copied before that.
  constexpr std::int64_t kNumel = 64 << 20;
  const at::Tensor all = at::empty({3 * kNumel}),
                   own = all.narrow(0, world->rank() * kNumel, kNumel);
  EXPECT_THROW(world->group()->all_gather(all, own, "rank 2 dies").wait(), CommError);
  const at::Tensor place = all.narrow(0, (1 - world->rank()) * kNumel, kNumel);
  place.fill_(-1);
  std::this_thread::sleep_for(500ms);
  EXPECT_TRUE(at::all(place == -1).item<bool>()) << "read too late";
}

// Gloo ends a process that gets more than it has asked for.
TEST_RANKS(SameHost, RanksThatGoDifferentWaysWait, 2) {
  const auto world = join_at(0, 1500ms);
  Group& group = *world->group();
  const std::int64_t numel = 5 * 128 * 1024;  // of a slice: five chunks of a sum
  const at::Tensor slice = at::ones({numel}), whole = at::ones({2 * numel});
  if (world->rank() == 0)
    group.reduce_scatter(slice, whole, Reduce::sum, "scatter").wait();
  else
    group.all_gather(whole, slice, "gather").wait();
  EXPECT_THROW(group.all_gather(whole, slice, "both").wait(), CommError);
}

// One large collective, whose result on this rank must be right if it says that it is there.
bool is_right(Group& group, int which, const at::Tensor& large) {
  const std::int64_t numel = large.numel(), size = group.size();
  if (which == 0) {
    group.broadcast(large, 0, "large").wait();
    return at::all(large == 1).item<bool>();
  }
  if (which == 1) {
    const at::Tensor all = at::zeros({size * numel});
    group.all_gather(all, large, "large").wait();
    return at::all(all.view({size, numel}) == at::arange(1, size + 1).view({size, 1})).item<bool>();
  }
  group.all_reduce(large, Reduce::sum, "large").wait();
  return at::all(large == static_cast<double>(size * (size + 1)) / 2).item<bool>();
}

// Rank 0 leaves in the middle, as `leave` does it; the others notice, and believe nothing of it.
void one_leaves(int which, const std::function<void(World&, const at::Tensor&)>& leave) {
  const auto world = join_at(0, 60s);
  Group& group = *world->group();
  const at::Tensor large = at::full({6 << 20}, world->rank() + 1.0F);
  group.barrier("begin");
  const auto began = std::chrono::steady_clock::now();
  try {
    if (world->rank() == 0) return leave(*world, large);
    EXPECT_TRUE(is_right(group, which, large)) << "a wrong result";
    group.barrier("next");
    ADD_FAILURE() << "rank 0 is not missed";
  } catch (const CommError&) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, 20s);
}

// How long after the beginning, so that tests that are repeated come to every part of it.
std::chrono::microseconds some_time() {
  return std::chrono::microseconds(std::random_device()() % 40'000);
}

// It gives up, and writes over what it gave as soon as it may.
void gives_up(int which) {
  one_leaves(which, [which](World& world, const at::Tensor& large) {
    std::thread other([&] {
      std::this_thread::sleep_for(some_time());
      world.group()->abort();
    });
    try {
      is_right(*world.group(), which, large);
    } catch (const CommError&) {
    }
    large.fill_(-1);
    other.join();
    world.group()->abort();
    std::this_thread::sleep_for(500ms);  // the others may still read
  });
}

TEST_RANKS(SameHostGivesUp, Broadcast, 3) { gives_up(0); }
TEST_RANKS(SameHostGivesUp, AllGather, 3) { gives_up(1); }
TEST_RANKS(SameHostGivesUp, AllReduce, 3) { gives_up(2); }

void is_killed(const std::string& name, int which) {
  if (!test::is_rank()) {
    const auto outcome = test::start_ranks("SameHostKilled", name, 3, 60s);
    EXPECT_EQ(outcome.exit_codes, (std::vector<int>{128 + SIGKILL, 0, 0})) << outcome.outputs[1];
    return;
  }
  one_leaves(which, [which](World& world, const at::Tensor& large) {
    std::thread([] {
      std::this_thread::sleep_for(some_time());
      raise(SIGKILL);
    }).detach();
    is_right(*world.group(), which, large);
    std::this_thread::sleep_for(10s);
  });
}

TEST(SameHostKilled, Broadcast) { is_killed("Broadcast", 0); }
TEST(SameHostKilled, AllGather) { is_killed("AllGather", 1); }
TEST(SameHostKilled, AllReduce) { is_killed("AllReduce", 2); }

}  // namespace
}  // namespace floe::comm::same_host_test
