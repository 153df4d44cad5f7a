// Zip archives: ours, crafted ones, and what is refused.
#include "floe/io/torch_file/zip.h"

#include <gtest/gtest.h>

#include "floe/core/error.h"
#include "tests/io/scratch.h"

namespace floe::zip_test {
namespace {

using test::Scratch;
using zip::Record;

ZipReader open(const std::string& path) { return ZipReader(std::make_shared<const File>(path)); }

template <class Action>
std::string problem(const Action& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "it was accepted";
}

TEST(Zip, EntriesSideBySide) {
  const Scratch scratch;
  ZipWriter writer(scratch.path("a.zip"));
  const auto a = writer.declare("x/a", 6), b = writer.declare("x/b", 0);
  const auto c = writer.declare("x/c", 3);
  const auto put = [&](std::size_t entry, std::string_view text) {
    writer.write(entry, std::as_bytes(std::span(text)));
  };
  put(c, "c");
  put(a, "aaa");
  put(c, "cc");
  EXPECT_EQ(writer.missing(a), 3);
  put(a, "AAA");
  put(b, "");
  writer.finish();

  const ZipReader reader = open(scratch.path("a.zip"));
  ASSERT_EQ(reader.entries().size(), 3u);
  EXPECT_EQ(reader.read(*reader.find("x/a"), 6), "aaaAAA");
  EXPECT_EQ(reader.read(*reader.find("x/b"), 6), "");
  EXPECT_EQ(reader.read(*reader.find("x/c"), 6), "ccc");
  EXPECT_EQ(reader.find("x/d"), nullptr);
  for (const ZipEntry& entry : reader.entries()) EXPECT_EQ(reader.data_offset(entry) % 64, 0);
  EXPECT_THROW(reader.read(*reader.find("x/a"), 5), DataError);
}

TEST(Zip, MisuseOfTheWriter) {
  const Scratch scratch;
  ZipWriter writer(scratch.path("a.zip"));
  const auto a = writer.declare("a", 2);
  EXPECT_THROW(writer.declare("a", 1), Error);
  EXPECT_THROW(writer.declare("", 1), Error);
  EXPECT_THROW(writer.declare("b", -1), Error);
  EXPECT_THROW(writer.write(a, std::as_bytes(std::span("abc", 3))), Error);
  EXPECT_THROW(writer.finish(), Error);
  EXPECT_FALSE(std::filesystem::exists(scratch.path("a.zip")));
}

TEST(Zip, APartOfAFile) {
  const Scratch scratch;
  {
    ZipWriter writer(scratch.path("a.zip"));
    writer.add("x/a", "content");
    writer.finish();
  }
  const std::string zip = scratch.read("a.zip");
  const auto file =
      std::make_shared<const File>(scratch.write("parts", "before" + zip + "PK and after"));
  const ZipReader reader(file, 6, static_cast<std::int64_t>(zip.size()));
  EXPECT_EQ(reader.read(*reader.find("x/a"), 100), "content");
  EXPECT_THROW(ZipReader(file, 6, file->size()), DataError);
  EXPECT_THROW(ZipReader(file, -1, 10), DataError);
}

TEST(Zip, MoreEntriesThan16Bits) {
  const Scratch scratch;
  ZipWriter writer(scratch.path("a.zip"), 1);
  for (int i = 0; i < 65'600; ++i) writer.add(std::to_string(i), i == 65'599 ? "last" : "");
  writer.finish();
  const ZipReader reader = open(scratch.path("a.zip"));
  EXPECT_EQ(reader.entries().size(), 65'600u);
  EXPECT_EQ(reader.read(*reader.find("65599"), 4), "last");
}

// An archive with one entry, each number of which can be wrong.
struct Crafted {
  std::uint16_t flags = 0, method = 0;
  std::uint64_t size = 4, stored_size = 4, header_offset = 0;
  bool zip64 = false;  // sizes and offset in the extra field
  std::uint32_t local_magic = zip::kLocalHeader, central_magic = zip::kCentralHeader;
  std::uint64_t entries = 1, directory_offset = 35;
  std::int64_t directory_length_more = 0;
  std::string comment;

  std::string bytes() const {
    const std::string local = Record()
                                  .u32(local_magic)
                                  .u16(20)
                                  .u16(flags)
                                  .u16(method)
                                  .u32(0)
                                  .u32(0)
                                  .u32(0)
                                  .u32(0)
                                  .u16(1)
                                  .u16(0)
                                  .text("a")
                                  .text("data")
                                  .bytes();
    const std::string wide = zip64 ? Record()
                                         .u16(0x5555)  // another field before it
                                         .u16(2)
                                         .u16(0)
                                         .u16(zip::kExtra64)
                                         .u16(24)
                                         .u64(size)
                                         .u64(stored_size)
                                         .u64(header_offset)
                                         .bytes()
                                   : "";
    const std::string central = Record()
                                    .u32(central_magic)
                                    .u16(20)
                                    .u16(20)
                                    .u16(flags)
                                    .u16(method)
                                    .u32(0)
                                    .u32(0)
                                    .u32(zip64 ? zip::kIn64 : stored_size)
                                    .u32(zip64 ? zip::kIn64 : size)
                                    .u16(1)
                                    .u16(wide.size())
                                    .u16(0)
                                    .u16(0)
                                    .u16(0)
                                    .u32(0)
                                    .u32(zip64 ? zip::kIn64 : header_offset)
                                    .text("a")
                                    .text(wide)
                                    .bytes();
    const std::uint64_t length = central.size() + static_cast<std::uint64_t>(directory_length_more);
    Record end;
    if (zip64)
      end.u32(zip::kEnd64)
          .u64(44)
          .u16(45)
          .u16(45)
          .u32(0)
          .u32(0)
          .u64(entries)
          .u64(entries)
          .u64(length)
          .u64(directory_offset)
          .u32(zip::kEnd64Locator)
          .u32(0)
          .u64(local.size() + central.size())
          .u32(1);
    end.u32(zip::kEnd)
        .u16(0)
        .u16(0)
        .u16(zip64 ? zip::kIn64Short : entries)
        .u16(zip64 ? zip::kIn64Short : entries)
        .u32(zip64 ? zip::kIn64 : length)
        .u32(zip64 ? zip::kIn64 : directory_offset)
        .u16(comment.size())
        .text(comment);
    return local + central + end.bytes();
  }
};

std::string read(const Crafted& crafted) {
  const Scratch scratch;
  const ZipReader reader = open(scratch.write("a.zip", crafted.bytes()));
  return reader.read(reader.entries().at(0), 100);
}

std::string problem(const Crafted& crafted) {
  return problem([&] { read(crafted); });
}

TEST(Zip, CraftedArchivesRead) {
  EXPECT_EQ(read({}), "data");
  EXPECT_EQ(read({.zip64 = true}), "data");
  EXPECT_EQ(read({.comment = "with a comment"}), "data");
  EXPECT_EQ(read({.comment = "PK\5\6 and more than 22 bytes that look like an end"}), "data");
}

TEST(Zip, Lies) {
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << "expected '" << part << "' in: " << text;
    EXPECT_NE(text.find("a.zip"), text.npos) << text;
  };
  has(problem({.method = 8}), "zip entry \"a\" is compressed or encrypted (method 8)");
  has(problem({.flags = 1}), "compressed or encrypted");
  has(problem({.size = 5, .stored_size = 5}), "has 5 bytes from byte 31, but the entries end");
  has(problem({.size = 5}), "is stored, but has two sizes: 5 and 4");
  has(problem({.header_offset = 1}), "has no header at byte 1");
  has(problem({.header_offset = 5000}), "cut off or damaged");
  has(problem({.local_magic = 1}), "has no header at byte 0");
  has(problem({.central_magic = 1}), "the zip directory is damaged at entry 0");
  has(problem({.entries = 2}), "the zip directory ends inside entry 1 of 2");
  has(problem({.directory_offset = 36}), "damaged");
  has(problem({.directory_offset = 1u << 30}), "cut off or damaged");
  has(problem({.directory_length_more = -1}), "the zip directory ends inside entry 0");
  for (const std::uint64_t huge : {std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    has(problem({.size = huge, .stored_size = huge, .zip64 = true}), "2^63 or more");
    has(problem({.header_offset = huge, .zip64 = true}), "2^63 or more");
    has(problem({.zip64 = true, .entries = huge}), "2^63 or more");
    has(problem({.zip64 = true, .directory_offset = huge}), "2^63 or more");
  }
  const std::uint64_t large = (std::uint64_t{1} << 63) - 1;
  has(problem({.size = large, .stored_size = large, .zip64 = true}), "more than the 100");
  has(problem({.header_offset = large, .zip64 = true}), "cut off or damaged");
  has(problem({.zip64 = true, .entries = large}), "the zip directory ends inside entry 1");
  has(problem({.zip64 = true, .directory_offset = large}), "cut off or damaged");
}

TEST(Zip, EveryTruncationIsRefused) {
  const Scratch scratch;
  for (const bool zip64 : {false, true}) {
    const std::string whole = Crafted{.zip64 = zip64}.bytes();
    for (std::size_t length = 0; length < whole.size(); ++length)
      EXPECT_THROW(open(scratch.write("cut", whole.substr(0, length))), DataError) << length;
  }
}

}  // namespace
}  // namespace floe::zip_test
