// Files, atomic files and the reading of byte ranges.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/file/input_stream.h"
#include "floe/io/tensors/tensor_source.h"
#include "tests/io/scratch.h"
#include "tests/support/few_descriptors.h"

namespace floe::io_test {
namespace {

using test::Scratch;

std::string text_at(const File& file, std::int64_t offset, std::size_t length) {
  std::string text(length, '?');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(File, ReadsAtAnyOffset) {
  const Scratch scratch;
  const File file(scratch.write("a", "0123456789"));
  EXPECT_EQ(file.size(), 10);
  EXPECT_EQ(text_at(file, 3, 4), "3456");
  EXPECT_EQ(text_at(file, 0, 10), "0123456789");
  EXPECT_EQ(text_at(file, 10, 0), "");
  EXPECT_THROW(text_at(file, 8, 3), DataError);
}

// Data that is passed over because this process has no descriptor left would be lost without a
// word.
TEST(Input, WantOfDescriptorsIsNoDamage) {
  if (!test::kMayLackDescriptors) GTEST_SKIP();
  const Scratch scratch;
  const std::string path = scratch.write("a.tar", "0123456789");
  const auto said = [](const std::function<void()>& open) -> std::string {
    try {
      const test::FewDescriptors few;
      open();
    } catch (const ResourceError& e) {
      return e.what();
    } catch (const std::exception& e) {
      return str("taken for damage: ", e.what());
    }
    return "nothing was refused";
  };
  const std::string limit = "raise the limit of open files";
  for (const std::string& where : {path, "pipe:cat " + path}) {
    const std::string sentence = said([&] { open_input(where); });
    EXPECT_NE(sentence.find(limit), std::string::npos) << where << ": " << sentence;
  }
  const std::string file = said([&] { File{path}; });
  EXPECT_NE(file.find(limit), std::string::npos) << file;
  const std::string folder = said([&] { file_names_in(scratch.path()); });
  EXPECT_NE(folder.find(limit), std::string::npos) << folder;
  EXPECT_THROW(open_input(scratch.path("missing")), DataError);
}

TEST(File, WhatLiesInAFolder) {
  const Scratch scratch;
  scratch.write("b", "");
  const std::string file = scratch.write("a", "");
  const std::string endless = scratch.path("endless");
  std::filesystem::create_symlink(endless, endless);
  EXPECT_EQ(file_names_in(scratch.path()), (std::vector<std::string>{"a", "b", "endless"}));
  EXPECT_EQ(file_names_in(scratch.path("missing")), std::vector<std::string>{});
  EXPECT_EQ(file_names_in(file), std::vector<std::string>{});
  EXPECT_THROW(file_names_in(endless), Error) << "what cannot be read is not empty";
}

TEST(File, RefusesWhatIsNoFile) {
  const Scratch scratch;
  EXPECT_THROW(File(scratch.path("missing")), DataError);
  EXPECT_THROW(File{scratch.path()}, DataError);
  EXPECT_THROW(read_text(scratch.write("a", "12345"), 4), DataError);
}

TEST(AtomicFile, AppearsOnlyOnCommit) {
  const Scratch scratch;
  scratch.write("out", "old");
  {
    AtomicFile file(scratch.path("out"));
    file.write_at(0, std::as_bytes(std::span("new", 3)));
    EXPECT_EQ(scratch.read("out"), "old");
    file.commit();
    EXPECT_EQ(scratch.read("out"), "new");
    EXPECT_THROW(file.commit(), Error);
    EXPECT_THROW(file.write_at(0, {}), Error);
  }
  EXPECT_EQ(scratch.read("out"), "new");
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const Scratch scratch;
  { AtomicFile file(scratch.path("out")); }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
  EXPECT_THROW(AtomicFile(scratch.path("no/such/folder")), Error);
}

// See Note [What is replaced].
TEST(AtomicFile, FollowsLinksAndReplacesNothingElse) {
  namespace fs = std::filesystem;
  const Scratch scratch;
  scratch.write("real", "old");
  fs::create_directory(scratch.path("folder"));
  fs::create_symlink("real", scratch.path("link"));
  fs::create_symlink("link", scratch.path("link to link"));
  fs::create_symlink("folder/to come", scratch.path("dangling"));
  EXPECT_EQ(behind_links(scratch.path("link to link")), scratch.path("real"));
  write_file_atomically(scratch.path("link to link"), "new");
  EXPECT_EQ(scratch.read("real"), "new");
  EXPECT_TRUE(fs::is_symlink(scratch.path("link to link")));
  write_file_atomically(scratch.path("dangling"), "new");
  EXPECT_EQ(scratch.read("folder/to come"), "new");
  EXPECT_TRUE(fs::is_symlink(scratch.path("dangling")));

  const auto expect_refused = [&](const std::string& name, const std::string& why) {
    try {
      write_file_atomically(scratch.path(name), "new");
      ADD_FAILURE() << name;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
  };
  ASSERT_EQ(::mkfifo(scratch.path("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", scratch.path("link to pipe"));
  for (const char* name : {"pipe", "link to pipe"}) {
    expect_refused(name, "is no ordinary file");
    EXPECT_TRUE(fs::is_fifo(scratch.path("pipe")));
  }
  expect_refused("folder", "is a folder");
  EXPECT_THROW(AtomicFolder(scratch.path("pipe"), AtomicFolder::Existing::replace), ConfigError);
  EXPECT_TRUE(fs::is_fifo(scratch.path("pipe")));
}

TEST(Checksum, OfAPartOfAFile) {
  const Scratch scratch;
  std::string text(1'000'000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 7);
  const File file(scratch.write("a", text));
  EXPECT_EQ(crc32(file, 0, file.size()), crc32(text));
  EXPECT_EQ(crc32(file, 3, 700'000), crc32(std::string_view(text).substr(3, 700'000)));
  EXPECT_EQ(crc32(file, 5, 0), 0u);
  EXPECT_THROW(crc32(file, 10, file.size()), DataError);
}

TEST(AtomicFile, WritersOfOneNameDoNotMix) {
  const Scratch scratch;
  std::vector<std::thread> threads;
  for (char c = 'a'; c < 'e'; ++c)
    threads.emplace_back([&, c] {
      for (int i = 0; i < 5; ++i) write_file_atomically(scratch.path("out"), std::string(1000, c));
    });
  for (auto& thread : threads) thread.join();
  const std::string text = scratch.read("out");
  EXPECT_EQ(text, std::string(1000, text.at(0)));
}

// A tensor whose elements lie in three pieces of two files.
class Pieces : public TensorSource {
 public:
  Pieces(std::string a, std::string b) {
    info_.name = "x";
    info_.shape = {2, 5};
    info_.dtype = DType::u8;
    info_.ranges = {{a, 2, 3}, {b, 0, 4}, {a, 7, 3}};
  }
  std::vector<std::string> names() const override { return {"x"}; }
  const TensorInfo* find(const std::string& name) const override {
    return name == "x" ? &info_ : nullptr;
  }
  TensorInfo info_;
};

TEST(TensorSource, ReadsAcrossRangesAndOnlyThem) {
  const Scratch scratch;
  const Pieces source(scratch.write("a", "0123456789"), scratch.write("b", "abcd"));
  const std::string whole = "234abcd789";
  std::uint64_t expected_bytes = 0;
  for (std::int64_t first = 0; first <= 10; ++first)
    for (std::int64_t count = 0; first + count <= 10; ++count) {
      std::string out(static_cast<std::size_t>(count), '?');
      source.read(source.get("x"), first, count, std::as_writable_bytes(std::span(out)));
      EXPECT_EQ(out, whole.substr(static_cast<std::size_t>(first), out.size()));
      expected_bytes += static_cast<std::uint64_t>(count);
      EXPECT_EQ(source.bytes_read(), expected_bytes);
    }
}

TEST(TensorSource, ChecksRequests) {
  const Scratch scratch;
  Pieces source(scratch.write("a", "0123456789"), scratch.write("b", "abcd"));
  std::vector<std::byte> out(4);
  EXPECT_THROW(source.read(source.info_, 7, 4, out), DataError);
  EXPECT_THROW(source.read(source.info_, -1, 4, out), DataError);
  EXPECT_THROW(source.read(source.info_, 11, 0, {}), DataError);
  EXPECT_THROW(source.read(source.info_, 0, 3, out), DataError);
  EXPECT_THROW(source.get("y"), DataError);
  source.info_.ranges.pop_back();
  EXPECT_THROW(source.read(source.info_, 6, 4, out), DataError);
}

TEST(TensorSource, ManyThreadsRead) {
  const Scratch scratch;
  const Pieces source(scratch.write("a", "0123456789"), scratch.write("b", "abcd"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        std::string out(10, '?');
        source.read(source.get("x"), 0, 10, std::as_writable_bytes(std::span(out)));
        ASSERT_EQ(out, "234abcd789");
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(source.bytes_read(), 4000u);
}

}  // namespace
}  // namespace floe::io_test
