// What a machine has, and what a container lets a process use of it.
#include "floe/starter/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "floe/core/bytes.h"

namespace floe::starter::machine_test {
namespace {

namespace fs = std::filesystem;

class MachineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            ("machine-" + std::to_string(std::hash<std::thread::id>()(std::this_thread::get_id())) +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:        1 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  Machine look() const { return look_at_machine(root_.string()); }

  fs::path root_;
};

TEST_F(MachineTest, WithoutAContainerItIsAllOfIt) {
  const Machine machine = look();
  EXPECT_EQ(machine.memory, 16 * kGiB);
  EXPECT_FALSE(machine.in_container);
  EXPECT_EQ(machine.cores, std::max(1U, std::thread::hardware_concurrency()));
}

TEST_F(MachineTest, AContainerOfVersion2MayAllowLess) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/memory.max", "4294967296\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  const Machine machine = look();
  EXPECT_EQ(machine.memory, 4 * kGiB);
  EXPECT_TRUE(machine.in_container);
  EXPECT_EQ(machine.cores, 1);
  EXPECT_EQ(machine.text().find("1 core, 4.00 GiB of memory (the container's limit), "), 0);
}

TEST_F(MachineTest, AndOneOfVersion1) {
  write("proc/self/cgroup", "9:cpu,cpuacct:/c\n4:memory:/c\n1:name=systemd:/c\n");
  write("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "2147483648\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
  const Machine machine = look();
  EXPECT_EQ(machine.memory, 2 * kGiB);
  EXPECT_EQ(machine.cores, std::max(1U, std::thread::hardware_concurrency()));
}

TEST_F(MachineTest, ALimitAboveTheMachineIsNone) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "99999999999999\n");
  EXPECT_EQ(look().memory, 16 * kGiB);
  EXPECT_FALSE(look().in_container);
}

}  // namespace
}  // namespace floe::starter::machine_test
