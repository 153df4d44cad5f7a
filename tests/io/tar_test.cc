#include "floe/io/tar/tar.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "floe/core/error.h"
#include "floe/io/file/input_stream.h"
#include "tests/io/scratch.h"

namespace floe::tar_test {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;
using Members = std::vector<std::pair<std::string, std::string>>;

std::string tar_of(const Members& members) {
  std::string bytes;
  TarWriter writer([&](std::span<const std::byte> part) {
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  });
  for (const auto& [name, data] : members) writer.add(name, std::as_bytes(std::span(data)));
  writer.finish();
  EXPECT_EQ(bytes.size() % 10240, 0U);
  return bytes;
}

struct Read {
  Members members;
  std::string error;
};

Read read(const std::string& where) {
  Read result;
  try {
    TarReader reader(where);
    for (TarEntry entry; reader.next(entry);)
      result.members.emplace_back(
          entry.name,
          std::string(reinterpret_cast<const char*>(entry.data.data()), entry.data.size()));
    TarEntry again;
    EXPECT_FALSE(reader.next(again));
  } catch (const DataError& error) {
    result.error = error.what();
  }
  return result;
}

const Members kMembers{{"a.jpg", "picture"},
                       {"a.txt", ""},
                       {"b.json", std::string(5000, 'x')},
                       {std::string(300, 'n') + ".txt", "a long name"},
                       {"na\xffme \xe6\xb0\xb4.txt", "any bytes"},
                       {"large.bin", std::string(3 << 20, 'z')}};

TEST(Tar, GivesWhatWasWritten) {
  const test::Scratch scratch;
  const Read got = read(scratch.write("a.tar", tar_of(kMembers)));
  EXPECT_EQ(got.members, kMembers);
  EXPECT_EQ(got.error, "");
}

TEST(Tar, PositionsAreThoseOfHeaders) {
  const test::Scratch scratch;
  TarReader reader(scratch.write("a.tar", tar_of({{"a", "1"}, {"b", ""}, {"c", "2"}})));
  TarEntry entry;
  for (const std::uint64_t position : {0, 1024, 1536}) {
    ASSERT_TRUE(reader.next(entry));
    EXPECT_EQ(reader.position(), position) << entry.name;
  }
}

TEST(Tar, EveryCutGivesTheWholeMembersBeforeIt) {
  const test::Scratch scratch;
  const Members members{{"a", std::string(700, 'a')}, {"b", "b"}, {"c", std::string(512, 'c')}};
  const std::string whole = tar_of(members);
  const std::vector<std::size_t> ends{512 + 700, 1536 + 512 + 1, 2560 + 512 + 512};
  for (std::size_t cut = 1; cut < 4096; cut += 37) {
    const Read got = read(scratch.write("cut.tar", whole.substr(0, cut)));
    std::size_t expected = 0;
    while (expected < ends.size() && ends[expected] <= cut) ++expected;
    EXPECT_EQ(got.members.size(), expected) << cut;
    for (std::size_t i = 0; i < got.members.size(); ++i) EXPECT_EQ(got.members[i], members[i]);
    const bool between = cut == 1536 || cut == 2560 || cut >= 3584 + 512;
    if (!between) {
      EXPECT_NE(got.error, "") << cut;
    }
  }
}

TEST(Tar, ErrorsNameShardPlaceAndDefect) {
  const test::Scratch scratch;
  const std::string whole = tar_of({{"a", "1"}, {"b", std::string(2000, 'b')}});
  const std::string cut = scratch.write("cut.tar", whole.substr(0, 2000));
  EXPECT_EQ(read(cut).error, "shard '" + cut +
                                 "', at byte 2000: the archive is cut off in member "
                                 "\"b\": 464 of 2000 bytes");
  std::string flipped = whole;
  flipped[1024 + 3] ^= 1;
  const std::string bad = scratch.write("bad.tar", flipped);
  EXPECT_EQ(read(bad).error, "shard '" + bad + "', at byte 1536: what should be a header is none");
  EXPECT_EQ(read(bad).members.size(), 1U);
  const std::string missing = scratch.path("missing.tar");
  EXPECT_EQ(read(missing).error, "cannot open shard '" + missing + "': No such file or directory");
}

TEST(Tar, AbsurdSizesTakeNoMemory) {
  const test::Scratch scratch;
  std::string bytes = tar_of({{"a", "1"}});
  // 2^33 - 1 bytes, then the largest binary number, with right checksums.
  for (const auto size : {"77777777777\0"sv, "\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"sv}) {
    bytes.replace(124, 12, size);
    bytes.replace(148, 8, 8, ' ');
    unsigned sum = 0;
    for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bytes[i]);
    char text[9];
    std::snprintf(text, sizeof text, "%06o", sum);
    bytes.replace(148, 7, std::string(text, 7));
    const Read got = read(scratch.write("huge.tar", bytes));
    EXPECT_TRUE(got.members.empty());
    EXPECT_NE(got.error.find("more than the 2147483648 that one may have"), std::string::npos)
        << got.error;
  }
}

TEST(Tar, CommandsAreReadToTheirEnd) {
  const test::Scratch scratch;
  const std::string path = scratch.write("a.tar", tar_of(kMembers));
  const Read got = read("pipe:cat " + path);
  EXPECT_EQ(got.members, kMembers);
  EXPECT_EQ(got.error, "");

  const Read failed = read("pipe:cat " + path + "; exit 3");
  EXPECT_EQ(failed.members, kMembers);
  EXPECT_NE(failed.error.find("failed with exit status 3"), std::string::npos) << failed.error;

  const Read killed = read("pipe:cat " + path + "; kill -9 $$");
  EXPECT_EQ(killed.members, kMembers);
  EXPECT_NE(killed.error.find("ended by signal 9"), std::string::npos) << killed.error;

  EXPECT_NE(read("pipe:no-such-program-anywhere 2>/dev/null").error, "");
  EXPECT_NE(read("pipe:true").error, "");  // wrote nothing
}

TEST(Tar, AReaderMayBeLeftEarly) {
  const test::Scratch scratch;
  const std::string path = scratch.write("a.tar", tar_of(kMembers));
  TarReader reader("pipe:while :; do cat " + path + "; done");
  TarEntry entry;
  EXPECT_TRUE(reader.next(entry));
}

// The process id that a command has written, once it is there.
pid_t process_of(const std::string& path) {
  int pid = 0;
  for (int i = 0; i < 5000 && !(std::ifstream(path) >> pid); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return pid;
}

// Whether the process ends, at once or soon.
bool ends(pid_t pid) {
  for (int i = 0; i < 5000; ++i) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    if (!(status >> number >> name >> state) || state == "Z") return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

TEST(Tar, ACommandThatDoesNotAnswerIsGivenUp) {
  const test::Scratch scratch;
  const std::string path = scratch.write("a.tar", tar_of(kMembers)), pid = scratch.path("pid");
  for (const std::string& before : {""s, "trap '' TERM; "s, "cat " + path + "; "}) {
    std::filesystem::remove(pid);
    std::atomic<bool> stop{false};
    pid_t process = 0;
    std::thread person([&] {
      process = process_of(pid);
      stop = true;
    });
    try {
      TarReader reader("pipe:" + before + "sleep 1000 & echo $! > " + pid + "; wait; wait", &stop);
      TarEntry entry;
      while (reader.next(entry)) continue;
      ADD_FAILURE() << "it has an end";
    } catch (const DataError&) {  // from the constructor or next(), wherever it waits
    }
    person.join();
    EXPECT_GT(process, 0);
    EXPECT_TRUE(ends(process)) << "it may hold on to the streams of this one";
  }
}

// What a terminal or a launcher signals is a group.
TEST(Tar, CommandsHaveAGroupOfTheirOwnAndNoInput) {
  const auto said = [](const std::string& command) {
    const auto stream = open_input("pipe:" + command);
    std::string text;
    for (char c = 0; stream->read(std::as_writable_bytes(std::span(&c, 1))) > 0;) text += c;
    return text;
  };
  EXPECT_NE(said("cut -d ' ' -f 5 /proc/self/stat"), std::to_string(getpgrp()) + "\n");
  EXPECT_EQ(said("readlink /proc/self/fd/0"), "/dev/null\n");
}

TEST(TarWriter, RefusesBadNames) {
  TarWriter writer([](std::span<const std::byte>) {});
  EXPECT_THROW(writer.add("", {}), Error);
  EXPECT_THROW(writer.add(std::string("a\0b", 3), {}), Error);
}

}  // namespace
}  // namespace floe::tar_test
